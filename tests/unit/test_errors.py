"""The errors: split by who must act, and each with what is needed to act."""

from __future__ import annotations

import inspect

import pytest

from specollama import errors
from specollama.errors import EndpointError, Refused, RunError, SpecollamaError, UsageError


def test_every_error_is_the_users_mistake_or_a_failed_run_but_never_both() -> None:
    classes = [
        kind
        for _, kind in inspect.getmembers(errors, inspect.isclass)
        if kind not in (SpecollamaError, errors.ApiError)
    ]
    assert len(classes) > 8
    for kind in classes:
        assert issubclass(kind, UsageError) != issubclass(kind, RunError), kind


@pytest.mark.parametrize("kind", [EndpointError, errors.Unreachable, errors.ModelMissing, errors.BrokenReply])
def test_an_error_of_a_server_says_which(kind: type[EndpointError]) -> None:
    error = kind("no answer", url="http://tower:11434")
    assert error.url == "http://tower:11434"
    assert str(error) == "no answer"


def test_a_refusal_carries_its_status() -> None:
    error = Refused("no such model", url="http://tower:11434", status=404)
    assert (error.status, error.url, str(error)) == (404, "http://tower:11434", "no such model")


def test_what_a_server_says_steers_no_terminal() -> None:
    error = Refused("no\x1b]0;owned\x07\nmore", url="http://x", status=500)
    assert str(error) == "no\\x1b]0;owned\\x07\\nmore"


def test_the_advice_for_an_unreachable_server_can_be_replaced_the_fault_stays() -> None:
    error = errors.Unreachable("can't reach http://x", url="http://x", advice="is Ollama running there?")
    assert str(error) == "can't reach http://x; is Ollama running there?"
    other = error.with_advice("start it")
    assert (str(other), other.url) == ("can't reach http://x; start it", "http://x")
    slow = errors.Unreachable("http://x gave no byte in time", url="http://x")
    assert str(slow.with_advice("start it")) == "http://x gave no byte in time"


@pytest.mark.parametrize(
    ("said", "full"),
    [
        ("the input length exceeds the context length", True),
        ("the request is longer than the model's 512 tokens", True),
        ("model runner has unexpectedly stopped", False),
    ],
)
def test_a_request_that_does_not_fit_the_context_is_told_apart(said: str, full: bool) -> None:
    assert Refused(f"http://x: {said}", url="http://x", status=400, said=said).is_context_full is full
    assert Refused(f"http://x: {said}", url="http://x", status=400).is_context_full is full
