"""The target of route scoring over real HTTP: which rows a round gives, and what the target keeps and writes alone."""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field

import pytest

from specollama.backends.engines.base import DrawSettings
from specollama.backends.engines.target import ScoringTarget
from specollama.backends.engines.token_texts import TokenTexts
from specollama.backends.engines.vllm import VLLM
from specollama.errors import Refused
from specollama.spec_decode.acceptance import position_seed
from specollama.spec_decode.types import (
    DoneReason,
    Draft,
    Origin,
    OutputToken,
    SamplingOptions,
    TargetContinuation,
    Token,
    VerifyResult,
)
from tests.support import toy
from tests.support.fake_engines import NAME, FakeVLLM
from tests.support.serving import serving, whole
from tests.support.toy import END, USER, Toy

PROMPT = toy.tokens("Once.<|assistant|>")
THE, CAT = toy.IDS[b" the"], toy.IDS[b" cat"]
DOT, OTHER_DOT = toy.IDS[b"."], min(token for token, piece in toy.PIECES.items() if piece == b".")
FIRST, SECOND = toy.IDS[b"\xc3"], toy.IDS[b"\xa9"]  # é
WARM = SamplingOptions(temperature=0.7)
ROWS = "/v1/completions"


@dataclass
class Written(Toy):
    """Writes these tokens, whatever was drafted. `again`: what it draws if it is asked for the first once more."""

    tokens: Sequence[int] = ()
    again: int | None = None
    asked: list[int] = field(default_factory=list)

    def next(self, context: Sequence[int], temperature: float = 0.0, seed: int | None = None) -> int:
        place = len(context) - len(PROMPT)
        self.asked.append(place)
        if self.again is not None and place == 0 and self.asked.count(0) > 1:
            return self.again
        return self.tokens[place] if place < len(self.tokens) else END


@asynccontextmanager
async def target(
    *tokens: int, again: int | None = None, room: int = 100, seed: int | None = None
) -> AsyncIterator[tuple[ScoringTarget, FakeVLLM]]:
    """A reply at its beginning, to a model that writes these tokens; its context has `room` for so many."""
    fake = FakeVLLM(Written(tokens=tokens, again=again), context=len(PROMPT) + room)
    async with AsyncExitStack() as stack:
        url = stack.enter_context(serving(fake))
        engine = await stack.enter_async_context(VLLM(url, model=NAME))
        draws, lexicon = DrawSettings(WARM, seed), TokenTexts(engine)
        path = list(PROMPT)
        yield ScoringTarget(engine, path, draws, lexicon, len(path), context_length=fake.context), fake


def draft(*tokens: tuple[int, str]) -> Draft:
    return Draft(tuple(Token(text, None, token) for token, text in tokens))


def emitted(*tokens: int) -> tuple[OutputToken, ...]:
    return tuple(OutputToken(Token(toy.text([token]), None, token), Origin.ACCEPTED) for token in tokens)


async def test_rows_go_as_far_as_the_engine_draws_the_drafted_tokens_itself() -> None:
    async with target(THE, CAT, DOT) as (reply, _):
        scored = await reply.score(draft((THE, " the"), (CAT, " cat")))
        assert [(offset, row.sample.id) for offset, row in scored.rows.items() if row.sample] == [
            (0, THE),
            (4, CAT),
            (8, DOT),
        ]
        assert (scored.rows_requested, scored.follows_target) == (3, True)
        other = await reply.score(draft((CAT, " cat"), (CAT, " cat")))
        assert (list(other.rows), other.rows_requested) == ([0], 3)


async def test_no_row_is_taken_behind_another_token_of_the_same_text() -> None:
    """The engine's text before it would be the same, but not the tokens that it goes on from."""
    assert DOT != OTHER_DOT
    async with target(OTHER_DOT, THE) as (reply, _):
        scored = await reply.score(draft((DOT, "."), (THE, " the")))
        assert list(scored.rows) == [0]
        sample = scored.rows[0].sample
        assert sample is not None
        assert (sample.text, sample.id) == (".", OTHER_DOT)


async def test_no_row_is_taken_behind_a_token_that_the_draft_takes_for_another_text() -> None:
    async with target(DOT, THE) as (reply, _):
        scored = await reply.score(draft((DOT, "!"), (THE, " the")))
        assert list(scored.rows) == [0]


async def test_no_row_is_taken_behind_the_end() -> None:
    async with target(END, THE) as (reply, _):
        scored = await reply.score(draft((END, ""), (THE, " the")))
        assert [row.end for row in scored.rows.values()] == [True]


@pytest.mark.parametrize("before", [(), (DOT,)])
async def test_a_draw_without_text_is_gone_on_from_and_not_drawn_anew(before: tuple[int, ...]) -> None:
    async with target(*before, FIRST, SECOND, again=THE if not before else None) as (reply, _):
        scored = await reply.score(draft(*((token, toy.text([token])) for token in before)))
        assert list(scored.rows.values())[-1].hidden
        written = await reply.commit(VerifyResult(emitted(*before), hidden=True), None)
        assert written == TargetContinuation((Token("é"),), sampled=2)
        assert reply.tokens == [*PROMPT, *before, FIRST, SECOND]


async def test_a_verdict_without_any_token_is_followed_by_one_that_the_target_writes_alone() -> None:
    async with target(THE) as (reply, _):
        assert await reply.commit(VerifyResult(), None) == TargetContinuation((Token(" the"),), sampled=1)
        assert await reply.commit(VerifyResult(emitted(CAT)), None) == TargetContinuation()
        assert reply.tokens == [*PROMPT, THE, CAT]


@pytest.mark.parametrize("limit", [1, 2, None])
async def test_a_limit_inside_a_character_ends_the_reply_there(limit: int | None) -> None:
    async with target(FIRST, SECOND, THE) as (reply, _):
        await reply.score(Draft())
        written = await reply.commit(VerifyResult(hidden=True), limit)
        if limit == 1:
            assert written == TargetContinuation((), 1, end=DoneReason.LENGTH)
            assert reply.tokens == [*PROMPT, FIRST]
        else:
            assert written == TargetContinuation((Token("é"),), 2)


async def test_a_control_token_prints_nothing_and_is_no_part_of_what_follows() -> None:
    async with target(USER, THE, USER, END) as (reply, _):
        for expected in (TargetContinuation((Token(" the"),), 2), TargetContinuation((), 1, end=DoneReason.STOP)):
            await reply.score(Draft())
            assert await reply.commit(VerifyResult(hidden=True), None) == expected
        assert reply.tokens == [*PROMPT, USER, THE, USER]


async def test_a_character_may_follow_a_control_token() -> None:
    async with target(USER, FIRST, SECOND) as (reply, _):
        await reply.score(Draft())
        assert await reply.commit(VerifyResult(hidden=True), None) == TargetContinuation((Token("é"),), 3)


async def test_the_context_is_filled_and_never_exceeded() -> None:
    """The engine refuses a request that leaves no room for a token."""
    async with target(THE, CAT, DOT, THE, room=3) as (reply, _):
        scored = await reply.score(draft((THE, " the"), (CAT, " cat"), (DOT, "."), (THE, " the")))
        assert scored.rows_requested == 3
        assert await reply.commit(VerifyResult(emitted(THE, CAT)), None) == TargetContinuation()
        assert (await reply.score(draft((DOT, ".")))).rows_requested == 1
        assert await reply.commit(VerifyResult(emitted(DOT)), None) == TargetContinuation(end=DoneReason.LENGTH)


async def test_a_character_that_the_contexts_end_cuts_ends_the_reply() -> None:
    async with target(FIRST, SECOND, room=1) as (reply, _):
        await reply.score(Draft())
        assert await reply.commit(VerifyResult(hidden=True), None) == TargetContinuation((), 1, end=DoneReason.LENGTH)


async def test_a_stream_is_never_asked_for_more_than_the_context_has() -> None:
    async with target(*[THE] * 9, room=5) as (reply, fake):
        for limit, expected in ((9, 5), (None, 5), (2, 2)):
            texts = [item.text async for item in reply.stream(limit) if isinstance(item, Token)]
            assert texts == [" the"] * expected
        assert [body["max_tokens"] for body in fake.bodies(ROWS)] == [5, 5, 2]


async def test_the_whole_text_is_read_by_each_slot_that_was_not_used_before() -> None:
    async with target(THE, CAT, DOT) as (reply, _):
        words = draft((THE, " the"), (CAT, " cat"), (DOT, "."))
        assert [(await reply.score(words.first(count))).prefilled_tokens for count in (0, 2, 2, 1, 3)] == [
            len(PROMPT),
            len(PROMPT),
            0,
            0,
            len(PROMPT),
        ]


async def test_each_place_of_the_reply_has_its_seed() -> None:
    async with target(THE, CAT, DOT, seed=5) as (reply, fake):
        reply.by_row = True
        await reply.score(draft((THE, " the")))
        await reply.commit(VerifyResult(emitted(THE)), None)
        await reply.score(Draft())
        seeds = {len(body["prompt"][0]) - len(PROMPT): body["seed"] for body in fake.bodies(ROWS)}
        assert seeds == {place: position_seed(5, place) for place in (0, 1)}


@pytest.mark.parametrize(("status", "times"), [(400, 1), (404, 1), (499, 1), (500, 2), (503, 2)])
async def test_what_the_engine_refused_is_not_asked_again_and_what_failed_is_once(status: int, times: int) -> None:
    async with target(THE) as (reply, fake):
        fake.faults[ROWS] = whole({"error": {"message": "no", "code": status}}, status)
        with pytest.raises(Refused, match="no"):
            await reply.score(Draft())
        assert len(fake.bodies(ROWS)) == times
