"""Servers that misbehave in front of the real engine, and at random: plain's text, or a beginning and one error."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from random import Random
from typing import Any

import pytest

from specollama.spec_decode.types import Route
from tests.support.hearing import Heard, hear, question, settings
from tests.support.misbehaving import (
    BUSY,
    Body,
    Busy,
    Changed,
    Cut,
    Hanging,
    Lines,
    Manners,
    Misbehaving,
    OldVersion,
    RefusedRows,
    Then,
    all_but_the_first,
    broken_off,
    loaded_anew,
    no_rows,
    third,
    thought,
)
from tests.support.scripted_ollama import Call, ScriptedOllama
from tests.support.serving import Answer

ASKED = question("Name the planets of the solar system, with a word on each.", num_predict=24, repeat_penalty=1)


class Later:
    """All that `when` says but the first so many."""

    def __init__(self, number: int, when: Callable[[Call], bool]) -> None:
        self._left, self._when = number, when

    def __call__(self, call: Call) -> bool:
        met = self._when(call)
        self._left -= met
        return met and self._left < 0


def target(call: Call) -> bool:
    return call.generates and call.model == "target"


def draft(call: Call) -> bool:
    return call.drafts


def without_vocabulary(line: Body) -> Body:
    return {**line, "model_info": {}}


MODES: dict[str, Callable[[], Manners]] = {
    "sound": Manners,
    "without a vocabulary": lambda: Changed(without_vocabulary, lambda call: call.path == "/api/show"),
    "old": lambda: OldVersion("0.12.0"),
    "very old": lambda: OldVersion("0.11.4"),
    "third row": lambda: RefusedRows(third),
    "third row once": lambda: RefusedRows(third, times=1),
    "first rows only": lambda: RefusedRows(all_but_the_first),
    "no log-probabilities": lambda: Changed(no_rows),
    "wrong counts": lambda: Changed(lambda line: {**line, "prompt_eval_count": 7}, target),
    "thinking": lambda: Changed(thought, target),
    "loaded anew": lambda: Changed(loaded_anew, target),
    "draft busy": lambda: Busy(Later(2, draft)),
    "draft hangs": lambda: Hanging(Later(2, draft)),
    "draft not done": lambda: Changed(broken_off, Later(2, draft)),
    "draft cut": lambda: Cut(Later(2, draft), 80),
    "target busy": lambda: Busy(Later(12, target)),
    "target hangs": lambda: Hanging(Later(12, target)),
    "target not done": lambda: Changed(broken_off, Later(12, target)),
    "target cut": lambda: Cut(Later(12, target), 80),
    "target ends early": lambda: Cut(Later(12, target), 80, "end"),
    "error line": lambda: Lines(lambda call: target(call) and call.streams, 5, {"error": "stopped"}),
}


@pytest.fixture(scope="module")
def plain() -> list[Heard]:
    """The reply by the target alone, once it was asked."""
    return []


@pytest.mark.parametrize(
    ("mode", "route"),
    [*((mode, Route.LANES) for mode in MODES), ("thinking", Route.GREEDY), ("error line", Route.GREEDY)],
)
async def test_a_mode_in_front_of_the_engine(
    embedded_url: str, serve: Callable[[Any], str], plain: list[Heard], mode: str, route: Route
) -> None:
    if not plain:
        plain.append(await hear(settings(embedded_url, route=Route.PLAIN), ASKED))
    server = Misbehaving(embedded_url, MODES[mode]())
    told = await hear(settings(serve(server), route=route, idle_timeout=2), ASKED)
    told.faithful(plain[0].text)
    if not mode.startswith(("target", "error")):
        assert told.error is None
    if mode == "very old":
        assert not [call for call in server.calls if call.renders]


async def test_an_old_versions_own_defaults_are_kept(embedded_url: str, serve: Callable[[Any], str]) -> None:
    """Repeated tokens were less probable there, unless told otherwise."""
    url = serve(Misbehaving(embedded_url, OldVersion("0.12.0")))
    asked = question("Repeat the word list: oak ash elm oak ash elm", num_predict=24)
    told = await hear(settings(url), asked)
    told.faithful((await hear(settings(url, route=Route.PLAIN), asked)).text)
    assert told.stats.rounds > 0


@dataclass
class Chaos(Manners):
    """Something goes wrong with a share of the calls, each time something else."""

    seed: int
    share: float

    def _struck(self, call: Call, kind: str) -> bool:
        chance = Random(f"{self.seed} {call.path} {call.number} {kind}").random()
        return call.generates and chance < self.share / 6

    def instead(self, call: Call) -> Answer | None:
        return BUSY if self._struck(call, "busy") else None

    def line(self, call: Call, line: Body) -> Body | None:
        if self._struck(call, "not done"):
            return broken_off(line)
        if self._struck(call, "no rows"):
            return no_rows(line)
        if self._struck(call, "wrong count") and "prompt_eval_count" in line:
            return {**line, "prompt_eval_count": 3}
        if self._struck(call, "no end") and line.get("done") and call.streams:
            return None
        return line

    def cut(self, call: Call, body: bytes) -> tuple[int, Then] | None:
        if not self._struck(call, "cut"):
            return None
        return len(body) // 2, "break" if call.number % 2 else "end"


@pytest.mark.parametrize("share", [0.05, 0.3])
@pytest.mark.parametrize("route", [Route.LANES, Route.GREEDY])
async def test_whatever_goes_wrong_the_text_is_plains_or_a_beginning_and_one_error(
    scripted: ScriptedOllama,
    scripted_url: str,
    serve: Callable[[Any], str],
    song_text: str,
    route: Route,
    share: float,
) -> None:
    server, ends = Misbehaving(scripted_url), set()
    url, seeds = serve(server), Random()
    for _ in range(8):
        seed = seeds.getrandbits(32)
        server.manners = Chaos(seed, share)
        told = await hear(settings(url, route=route))
        try:
            told.faithful(song_text)
        except AssertionError as error:
            raise AssertionError(f"with seed {seed}: {told}") from error
        ends.add((told.error is None, len(told.statuses)))
    assert ends
