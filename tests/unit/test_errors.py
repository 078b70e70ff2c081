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
