"""Drafting while the target verifies: the same reply, in no more time than one after the other, on a virtual clock."""

from __future__ import annotations

import asyncio
from contextlib import aclosing
from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from specollama.backends.scripted import End, Script, ScriptedDrafter, ScriptedTarget, fixed_script
from specollama.errors import RunError
from specollama.spec_decode.decode_loop import SpeculativeDecoder
from specollama.spec_decode.draft_ahead import DraftAhead, OverlappedTarget
from specollama.spec_decode.lookahead import FixedLookahead
from specollama.spec_decode.metrics import Stats
from specollama.spec_decode.types import AcceptanceMethod, Draft, SamplingOptions, TargetScores, Token
from tests.support.draws import examples
from tests.support.scripted_runs import Reply, reply, wild
from tests.support.virtual_clock import timed

COLD = SamplingOptions(temperature=0, num_predict=61)
LONG = fixed_script(*[f"w{place} " for place in range(200)])


class SlowDrafter(ScriptedDrafter):
    """Takes `request` seconds a draft and `token` seconds a token; counts what was asked and what is under way."""

    def __init__(self, script: Script, request: float, token: float, fails_after: int = 10**6) -> None:
        super().__init__(script, COLD, 1)
        self.request, self.token, self.fails_after = request, token, fails_after
        self.running = self.asked = 0

    async def propose(self, text: str, count: int) -> Draft:
        self.asked += 1
        self.running += 1
        try:
            draft = await super().propose(text, count)
            await asyncio.sleep(self.request + self.token * len(draft.tokens))
            if self.asked > self.fails_after:
                raise RunError("gone")
            return draft
        finally:
            self.running -= 1


class SlowTarget(ScriptedTarget):
    """Takes `row` seconds to score any draft."""

    def __init__(self, script: Script, row: float) -> None:
        super().__init__(script, COLD, 1)
        self.row = row

    async def score(self, draft: Draft) -> TargetScores:
        await asyncio.sleep(self.row)
        return await super().score(draft)


async def written(target: SlowTarget, drafter: SlowDrafter, lookahead: int, *, overlapped: bool) -> tuple[Reply, Stats]:
    """A reply of the two, one after the other or overlapped."""
    ahead = DraftAhead(drafter)
    speculation = SpeculativeDecoder(
        prompt="",
        target=OverlappedTarget(target, [ahead]) if overlapped else target,
        drafter=ahead if overlapped else drafter,
        lookahead=FixedLookahead(lookahead),
        rule=AcceptanceMethod.GREEDY,
        options=COLD,
        stats=Stats(),
    )
    async with aclosing(ahead), aclosing(speculation.events()) as stream:
        said = reply([event async for event in stream])
    assert drafter.running == 0, "a draft runs on after the reply"
    return said, speculation.stats


@pytest.mark.parametrize(("request_time", "token", "row"), [(0.02, 0.01, 0.3), (0.1, 0.05, 0.2), (0.0, 0.1, 0.5)])
def test_a_round_that_is_accepted_whole_takes_the_longer_of_drafting_and_verifying(
    request_time: float, token: float, row: float
) -> None:
    drafter = SlowDrafter(LONG, request_time, token)
    (_, stats), seconds = timed(written(SlowTarget(LONG, row), drafter, 4, overlapped=True))
    longest = max(row, request_time + 5 * token)  # the guess at the bonus token included
    assert (stats.accepted, stats.drafted) == (48, 48)
    first = request_time + 4 * token
    assert seconds - first <= 1.1 * longest * (stats.rounds + 1)


@examples(150)
@given(
    seed=st.integers(0, 10**6),
    agreeing=st.integers(1, 12),
    lookahead=st.integers(1, 6),
    request_time=st.floats(0, 0.3),
    token=st.floats(0, 0.1),
    row=st.floats(0.01, 1),
)
def test_it_is_never_slower_than_one_after_the_other_and_says_the_same(
    seed: int, agreeing: int, lookahead: int, request_time: float, token: float, row: float
) -> None:
    script, other = _pair(seed, agreeing)

    def run(overlapped: bool) -> tuple[tuple[Reply, Stats], float]:
        drafter = SlowDrafter(other, request_time, token)
        return timed(written(SlowTarget(script, row), drafter, lookahead, overlapped=overlapped))

    (said, counts), seconds = run(overlapped=True)
    (expected, sequential), limit = run(overlapped=False)
    assert said == expected
    assert (counts.rounds, counts.accepted) == (sequential.rounds, sequential.accepted)
    assert seconds <= limit + 1e-9


def test_a_draft_ahead_that_fails_is_asked_for_again_and_then_ends_the_drafting() -> None:
    async def run() -> tuple[Reply, Stats]:
        return await written(SlowTarget(LONG, 0.1), SlowDrafter(LONG, 0, 0.01, fails_after=3), 4, overlapped=True)

    (said, stats), _ = timed(run())
    assert said.text == "".join(f"w{place} " for place in range(61))
    assert stats.notices == ["the draft failed: gone"]


@pytest.mark.parametrize(
    ("text", "drafted", "asked"),
    [("abc", "de", 2), ("abcd", "e", 2), ("abx", "cd", 3), ("ax", "bc", 3), ("abcde", "fg", 3), ("abd", "de", 3)],
)
async def test_what_was_drafted_ahead_is_used_if_the_text_goes_on_like_it(text: str, drafted: str, asked: int) -> None:
    drafter = SlowDrafter(lambda reply: {"abcdefgh"[len(reply.replace("x", ""))]: 1.0}, 0, 0)
    ahead = DraftAhead(drafter)
    ahead.start(await ahead.propose("", 2))
    await asyncio.sleep(0.01)  # "cde" is there by now
    assert (await ahead.propose(text, 2)).text == drafted
    assert drafter.asked == asked
    await ahead.aclose()


@pytest.mark.parametrize(("text", "count", "drafted"), [("ab", 2, "cd"), ("abc", 1, "d"), ("ab", 5, "cde")])
async def test_of_what_was_drafted_ahead_no_more_is_used_than_was_asked_for(
    text: str, count: int, drafted: str
) -> None:
    ahead = DraftAhead(SlowDrafter(fixed_script(*"abcdefgh"), 0, 0))
    ahead.start(await ahead.propose("", 2))
    await asyncio.sleep(0.01)  # "cde" is there by now
    assert (await ahead.propose(text, count)).text == drafted
    await ahead.aclose()


async def test_another_drafters_draft_begins_nothing() -> None:
    drafter = SlowDrafter(LONG, 0, 0)
    ahead = DraftAhead(drafter)
    ahead.start(Draft((Token("a"),)))
    ahead.start((await ahead.propose("", 2)).first(0))
    ahead.start(Draft((Token("a"),)))  # nothing of the own one was sent
    await asyncio.sleep(0.01)
    assert drafter.asked == 1


def _pair(seed: int, agreeing: int) -> tuple[Script, Script]:
    """Two models of which the second says something else at about one text in `agreeing`."""
    script = wild(seed, ["a", "b", "c", "d", End()], contrast=8.0)

    def odd(text: str) -> bool:
        return Random(f"{seed} {len(text)}").random() * agreeing < 1

    return script, lambda text: {"z": 1.0} if odd(text) else script(text)
