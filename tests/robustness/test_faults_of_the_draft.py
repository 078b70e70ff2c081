"""A draft's server that misbehaves: the rest comes plain, for a reason that is told, and the text is the same."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from specollama.errors import ModelMissing
from specollama.pairs.pair import Pair
from specollama.spec_decode.types import Route
from tests.support.hearing import Heard, hear, heard, question, settings
from tests.support.misbehaving import (
    BUSY,
    Busy,
    Changed,
    Cut,
    GoRunner,
    Hanging,
    Manners,
    Misbehaving,
    OldVersion,
    broken_off,
    no_rows,
    thought,
)
from tests.support.scripted_ollama import Call, Piece, ScriptedModel, ScriptedOllama, song
from tests.support.serving import Answer, whole

Server = Callable[..., Misbehaving]


@pytest.fixture
def target_url(serve: Callable[[Any], str]) -> str:
    """A sound server for the target."""
    return serve(song())


def drafting(call: Call) -> bool:
    return call.drafts


class Later:
    """From the third draft on."""

    def __init__(self) -> None:
        self.drafts = 0

    def __call__(self, call: Call) -> bool:
        self.drafts += call.drafts
        return call.drafts and self.drafts > 2


LOST: dict[str, tuple[Callable[[Callable[[Call], bool]], Manners], str]] = {
    "busy": (Busy, "server busy"),
    "hanging": (Hanging, "gave no byte in time"),
    "not done": (lambda when: Changed(broken_off, when), "done: false"),
    "cut in a string": (lambda when: Cut(when, 25, "end"), "isn't what Ollama sends"),
    "reset": (lambda when: Cut(when, 25), "the connection broke"),
    "stalled": (lambda when: Cut(when, 25, "stall"), "gave no byte in time"),
    "empty": (lambda when: Cut(when, 0, "end"), "isn't what Ollama sends: ''"),
    "a page": (lambda when: Busy(when, answer=Answer([b"<html>"], 502, "text/html")), "HTTP 502 Bad Gateway"),
    "crashed": (lambda when: Busy(when, answer=whole({"error": "the model runner\nhas stopped"}, 500)), "has stopped"),
    "C26 its context is full": (
        lambda when: Busy(when, answer=whole({"error": "the input length exceeds the context length"}, 400)),
        "exceeds the context length",
    ),
    "unloaded": (lambda when: Busy(when, answer=whole({"error": "model 'draft' not found"}, 404)), "not found"),
}


@pytest.mark.parametrize("route", [Route.LANES, Route.GREEDY])
@pytest.mark.parametrize("fault", LOST)
async def test_a_draft_that_is_lost_in_mid_reply_turns_the_rest_plain(
    misbehaving: Server, target_url: str, song_text: str, fault: str, route: Route
) -> None:
    make, said = LOST[fault]
    server = misbehaving(make(Later()))
    told = await hear(settings(target_url, server.url, idle_timeout=0.5, route=route))
    told.faithful(song_text)
    assert told.error is None
    assert told.ended_plain.startswith("the draft failed: ")
    assert said in told.ended_plain
    assert server.drafts == 3, "it isn't asked again"


@pytest.mark.parametrize("fault", LOST)
async def test_a_draft_that_never_works_leaves_the_reply_to_the_targets_chat(
    misbehaving: Server, target_url: str, song_text: str, fault: str
) -> None:
    make, said = LOST[fault]
    told = await hear(settings(target_url, misbehaving(make(drafting)).url, idle_timeout=0.5))
    told.faithful(song_text)
    assert told.error is None
    assert said in told.plain


@pytest.mark.parametrize("path", ["/api/version", "/api/show", "/api/tags"])
@pytest.mark.parametrize("manners", [Hanging, Busy], ids=["hanging", "busy"])
async def test_a_draft_that_can_not_be_looked_at_is_told_and_the_reply_comes_plain(
    misbehaving: Server, target_url: str, song_text: str, path: str, manners: Callable[..., Manners]
) -> None:
    server = misbehaving(manners(lambda call: call.path == path))
    told = await hear(settings(target_url, server.url, idle_timeout=0.5))
    told.faithful(song_text)
    assert told.error is None
    assert told.plain.startswith("the draft's server: ")
    assert server.url in told.plain


async def test_a_draft_that_is_not_there_is_told(target_url: str, song_text: str) -> None:
    told = await hear(settings(target_url, "http://127.0.0.1:9"))
    told.faithful(song_text)
    assert told.plain.startswith("the draft's server: can't reach http://127.0.0.1:9 (from a test): ")


async def test_a_draft_model_that_is_missing_is_an_error_with_what_to_do(
    scripted: ScriptedOllama, scripted_url: str, target_url: str
) -> None:
    scripted.models = {"draught": scripted.models["draft"]}
    told = await hear(settings(target_url, scripted_url))
    assert isinstance(told.error, ModelMissing)
    assert "has no model 'draft' (there: draught:latest); get it with `ollama pull draft`" in str(told.error)


SOUND: dict[str, Manners] = {
    "an old version": OldVersion("0.12.0"),
    "a very old version": OldVersion("0.5.0"),
    "a Go runner": GoRunner(),
    "without log-probabilities": Changed(no_rows),
    "everything is thinking": Changed(thought, drafting),
}


@pytest.mark.parametrize("manners", SOUND)
async def test_a_draft_that_only_tells_less_is_used_or_left_alone(
    misbehaving: Server, target_url: str, song_text: str, manners: str
) -> None:
    told = await hear(settings(target_url, misbehaving(SOUND[manners]).url))
    told.faithful(song_text)
    assert told.error is None


DRAFTS: dict[str, ScriptedModel] = {
    "nothing": ScriptedModel(()),
    "blanks": ScriptedModel([Piece(" ")] * 100),
    "a whole other text": ScriptedModel([Piece(" never")] * 100),
    "half characters": ScriptedModel([Piece("\ufffd")] * 100),
    "very long tokens": ScriptedModel([Piece(" never" * 1000)] * 100),
    "the end marker as text": ScriptedModel([Piece("<|im_end|>")] * 100),
    "the beginnings of the words": ScriptedModel([Piece("T"), Piece("he"), Piece(" ti"), Piece("de")]),
}


@pytest.mark.parametrize("route", [Route.LANES, Route.GREEDY])
@pytest.mark.parametrize("draft", DRAFTS)
async def test_C21_whatever_is_drafted_the_text_is_the_targets(
    scripted: ScriptedOllama, scripted_url: str, target_url: str, song_text: str, draft: str, route: Route
) -> None:
    scripted.models = {"draft": DRAFTS[draft]}
    told = await hear(settings(target_url, scripted_url, route=route))
    told.faithful(song_text)
    assert told.error is None


async def test_C21_a_draft_of_which_nothing_is_accepted_is_given_up(
    scripted: ScriptedOllama, scripted_url: str, target_url: str, song_text: str
) -> None:
    scripted.models = {"draft": DRAFTS["a whole other text"]}
    told = await hear(settings(target_url, scripted_url, lookahead="auto"))
    told.faithful(song_text)
    assert told.ended_plain == "almost nothing of the draft is accepted (0 of 24 tested tokens)"


async def test_C19_a_wrong_draft_is_read(
    scripted: ScriptedOllama, scripted_url: str, serve: Callable[[Any], str]
) -> None:
    scripted.models = {"draft": ScriptedModel([Piece("5")])}
    target = serve(replace(song(), models={"target": ScriptedModel([Piece("4")])}))
    told = await hear(settings(target, scripted_url), question("2+2="))
    assert told.text == "4"
    assert told.stats.acceptance_rate == 0


@pytest.mark.parametrize("route", [Route.LANES, Route.GREEDY])
async def test_C27_the_second_reply_of_a_pair_is_drafted_as_the_first(
    scripted_url: str, song_text: str, route: Route
) -> None:
    async with Pair(settings(scripted_url, route=route), {}) as pair:
        replies: list[Heard] = [await heard(pair, question()) for _ in range(3)]
    for told in replies:
        told.faithful(song_text)
        assert told.stats.acceptance_rate == replies[0].stats.acceptance_rate
        assert told.stats.accepted > 10


async def test_a_draft_that_comes_back_is_used_in_the_next_reply(
    misbehaving: Server, target_url: str, song_text: str
) -> None:
    server = misbehaving(Busy(drafting))
    async with Pair(settings(target_url, server.url), {}) as pair:
        assert BUSY.status == 503
        assert "server busy" in (await heard(pair, question())).plain
        server.manners = Manners()
        told = await heard(pair, question())
    told.faithful(song_text)
    assert told.stats.accepted > 10
