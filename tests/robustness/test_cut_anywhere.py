"""The connection breaks after k bytes of an answer, for every k: nothing but a beginning, and one error."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from typing import Any

import pytest

from specollama.errors import BrokenReply, Unreachable
from specollama.pairs.pair import Pair
from specollama.spec_decode.types import Route
from tests.support.cutting import Cutting
from tests.support.hearing import heard, question, settings
from tests.support.scripted_ollama import Call, Piece, ScriptedModel, ScriptedOllama
from tests.support.serving import JSON, NDJSON, Answer

ROW = 260  # bytes of a row's answer, headers and all
TEXT = "So 東 it is."
MODELS = {
    "target": ScriptedModel([Piece("So"), Piece(" 東", 3), Piece(" it"), Piece(" is.")]),
    "draft": ScriptedModel([Piece("So"), Piece(" 東", 3), Piece(" it")]),
}


def answering(cut: Callable[[Call], int | None]) -> Callable[[str, bytes], tuple[Answer, int | None]]:
    scripted = ScriptedOllama(MODELS)

    def answer(path: str, body: bytes) -> tuple[Answer, int | None]:
        call = Call(path, json.loads(body) if body else {})
        status, said = scripted._answer(call)
        lines = said if isinstance(said, list) else [said]
        short = [json.dumps(_short(line), ensure_ascii=False).encode() + b"\n" for line in lines]
        return Answer(short, status, NDJSON if isinstance(said, list) else JSON), cut(call)

    return answer


def _short(line: Mapping[str, Any]) -> dict[str, Any]:
    """Fewer bytes to cut at."""
    return {key: value for key, value in line.items() if key not in ("logprobs", "model") and "duration" not in key}


@pytest.mark.parametrize("resets", [False, True], ids=["closed", "reset"])
@pytest.mark.parametrize("route", [Route.PLAIN, Route.GREEDY])
async def test_a_stream_cut_anywhere_is_a_beginning_and_one_error(route: Route, resets: bool) -> None:
    place: list[int | None] = [None]

    def cut(call: Call) -> int | None:
        return place[0] if call.streams and call.model == "target" and not call.renders else None

    async with Cutting(answering(cut), resets).up() as server, Pair(settings(server.url, route=route), {}) as pair:
        (await heard(pair, question())).faithful(TEXT)
        length, lengths = max(len(sent) for sent in server.sent if b"is." in sent), set()
        for k in range(0, length, 1 if route is Route.PLAIN else 5):
            place[0] = k
            told = await heard(pair, question())
            told.faithful(TEXT)
            if told.error:
                assert isinstance(told.error, BrokenReply | Unreachable)
            else:
                assert k > length - 20, "only what follows the last line may be missing"
            lengths.add(len(told.text))
    assert len(lengths) >= 3, "what came before the cut is there"


@pytest.mark.parametrize("times", [1, 2], ids=["once", "always"])
@pytest.mark.parametrize("place", ["first", "later", "extension"])
async def test_a_row_cut_anywhere_is_asked_again_and_then_done_without(place: str, times: int) -> None:
    at: list[int | None] = [None]
    left: list[int] = [0]

    def struck(call: Call) -> bool:
        written = str(call.body.get("prompt", "")).rpartition("assistant\n")[2]
        if place == "extension":
            return call.generates and not call.streams and call.options.get("num_predict", 0) > 1
        return call.is_row and written == {"first": "", "later": "So"}[place]

    def cut(call: Call) -> int | None:
        if at[0] is None or call.model != "target" or not struck(call) or not left[0]:
            return None
        left[0] -= 1
        return at[0]

    async with Cutting(answering(cut)).up() as server, Pair(settings(server.url, lookahead=1), {}) as pair:
        (await heard(pair, question())).faithful(TEXT)
        for k in range(0, ROW, 1 if (place, times) == ("later", 1) else 7):
            at[0], left[0] = k, times
            told = await heard(pair, question())
            told.faithful(TEXT)
            if times == 1:
                assert told.error is None
                assert len(told.statuses) == 1
            if not left[0] and times == 2 and place == "later":
                assert told.error is None
                assert told.ended_plain.startswith("a row failed twice: ")
            if not left[0] and times == 2 and place != "later":
                assert isinstance(told.error, BrokenReply)


async def test_a_draft_cut_anywhere_leaves_the_text_as_it_is() -> None:
    at: list[int | None] = [None]

    def cut(call: Call) -> int | None:
        return at[0] if call.drafts else None

    async with Cutting(answering(cut)).up() as server, Pair(settings(server.url), {}) as pair:
        (await heard(pair, question())).faithful(TEXT)
        for k in range(0, ROW, 7):
            at[0] = k
            told = await heard(pair, question())
            told.faithful(TEXT)
            assert told.error is None
