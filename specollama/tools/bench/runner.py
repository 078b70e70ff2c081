"""The measurements: every prompt to every side, in turn, in one run; each reply after a fresh start."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import aclosing
from dataclasses import dataclass, field
from typing import Any

from specollama.backends.ollama.schema import Message
from specollama.errors import EndpointError, ModelMissing, Unreachable
from specollama.pairs.report import stats_object
from specollama.pairs.request import ChatInput
from specollama.tools.bench.comparison import CollectedReply
from specollama.tools.bench.near_ties import GapDrift
from specollama.tools.bench.prompts import Prompt
from specollama.tools.bench.reply_timing import ReplyTiming
from specollama.tools.bench.systems import PLAIN, Contestant, ReplySource

TOP_LOGPROBS = 5
"""Most probable tokens requested of plain: two give the gap, the others show tokens that changed places."""

_WARMING = "Hello."
"""Warm-up: one token of a prompt that isn't measured loads the models and touches their weights."""


@dataclass(frozen=True, slots=True)
class BenchPrompt:
    """One turn of a prompt. `user_turns`: the user's turns up to it."""

    id: str
    category: str
    user_turns: tuple[str, ...]

    def conversation(self, answers: Sequence[str], options: Mapping[str, Any], top: int = 0) -> ChatInput:
        """`answers`: to the turns before, the same for every side."""
        messages = [Message(role="user", content=self.user_turns[0])]
        for answer, said in zip(answers, self.user_turns[1:], strict=True):
            messages += [Message(role="assistant", content=answer), Message(role="user", content=said)]
        return ChatInput(messages, options, top_logprobs=top)


def prompt_turns(prompt: Prompt, turns: int) -> list[BenchPrompt]:
    """The first `turns` turns of a prompt, each to be answered after those before it."""
    count = min(turns, len(prompt.turns))
    names = [prompt.id if count == 1 else f"{prompt.id}.{number}" for number in range(1, count + 1)]
    return [BenchPrompt(name, prompt.category, prompt.turns[:number]) for number, name in enumerate(names, 1)]


@dataclass(frozen=True, slots=True)
class Measurement:
    """One reply of one side. `fault`: why it broke off; "" when it is whole.

    `seen_before`: its engine couldn't be started afresh, and had this prompt from this side before. `prompt_cached`:
    or from any side, so that the prompt may have been in its KV cache.
    """

    side: str
    question: str
    category: str
    repeat: int
    timed: ReplyTiming
    fault: str = ""
    seen_before: bool = False
    prompt_cached: bool = False

    @property
    def reply(self) -> CollectedReply:
        return self.timed.reply

    def as_object(self) -> dict[str, Any]:
        """All that was measured; durations in nanoseconds."""
        timed = self.timed
        return {
            "side": self.side,
            "prompt": self.question,
            "category": self.category,
            "repeat": self.repeat,
            "seen_before": self.seen_before,
            "prompt_cached": self.prompt_cached,
            "fault": self.fault,
            "text": self.reply.text,
            "answer": self.reply.answer,
            "done_reason": str(self.reply.reason) if self.reply.reason else None,
            "first_burst": timed.first_burst,
            "first_text_duration": timed.first_text,
            "decode_duration": timed.decode_duration,
            "end_to_end_duration": timed.end,
            "decode_tokens_per_second": timed.tokens_per_second,
            "overall_tokens_per_second": timed.tokens_per_second_overall,
            "stats": stats_object(self.reply.stats),
        }


@dataclass(slots=True)
class Measurements:
    """Measurements of a run so far. `plain_replies`: plain's replies with their most probable tokens, by question.

    `untold`: why such a reply didn't come, so that gaps aren't known. `temperature`: of all replies; above 0 the
    best token isn't always drawn, and no gap is known.
    """

    measurements: list[Measurement] = field(default_factory=list)
    plain_replies: dict[str, CollectedReply] = field(default_factory=dict)
    untold: dict[str, str] = field(default_factory=dict)
    gap_drifts: dict[str, GapDrift] = field(default_factory=dict)  # by side
    temperature: float = 0.0

    def of(self, side: str, question: str) -> list[Measurement]:
        return [each for each in self.measurements if (each.side, each.question) == (side, question)]

    def questions(self) -> dict[str, str]:
        """The questions measured, with their kinds."""
        return {each.question: each.category for each in self.measurements}


@dataclass(slots=True)
class BenchRun:
    """One benchmark. `options`: of every reply; `note` receives each step as a short text."""

    sides: Mapping[str, Contestant]
    options: Mapping[str, Any]
    repeat: int
    measured: Measurements
    note: Callable[[str], None] = lambda what: None
    _asked: set[tuple[str, str]] = field(default_factory=set)  # questions by the engines that may remember them

    async def warm_up(self) -> None:
        """A token of every side, not counted: models are loaded, and timed where that wasn't done yet.

        Raises EndpointError.
        """
        for name, side in self.sides.items():
            self.note(f"loading: {name}")
            async with side.fresh(again=False) as replies:
                await self._warm_up(replies)

    async def run_prompt(self, prompt: Prompt, turns: int) -> None:
        """Every turn of a prompt, `repeat` times to all sides in turn; plain's answers make the conversation.

        Raises Unreachable, ModelMissing and UsageErrors; another failure of a server is kept as a fault of the reply.
        """
        answers: list[str] = []
        asked = prompt_turns(prompt, turns)
        for place, question in enumerate(asked):
            answer = await self._measure(question, answers)
            if not answer:
                self._give_up(asked[place + 1 :], question)
                return
            answers.append(answer)

    async def _measure(self, question: BenchPrompt, answers: Sequence[str]) -> str:
        """All replies to a question; plain's first answer, which is the next turn's: "" where there is none.

        Where plain's first reply fails, no other is asked for.
        """
        first: Measurement | None = None
        for repeat in range(self.repeat):
            for name, side in self.sides.items():
                self.note(f"{question.id}: {name}, {repeat + 1} of {self.repeat}")
                found = await self._reply(name, side, question, answers, repeat)
                self.measured.measurements.append(found)
                first = first or found
                if first.fault:
                    self._give_up([question], question, but=PLAIN)
                    return ""
        assert first
        if not self.measured.temperature:
            await self._tell(question, answers, first.reply)
        return first.reply.answer

    async def _reply(
        self, name: str, side: Contestant, question: BenchPrompt, answers: Sequence[str], repeat: int
    ) -> Measurement:
        cached = side.remembers and (side.engine, question.id) in self._asked
        seen = side.remembers and repeat > 0
        timed, fault = await self._kept(side, question.conversation(answers, self.options), again=repeat > 0)
        if side.remembers:
            self._asked.add((side.engine, question.id))
        return Measurement(name, question.id, question.category, repeat, timed, fault, seen, cached)

    async def _tell(self, question: BenchPrompt, answers: Sequence[str], plain: CollectedReply) -> None:
        """Learn plain's most probable tokens, and how far the sides' gaps lie from them.

        After all timed replies: none finds the prompt read for it, and plain isn't slowed by telling its tokens. A
        timed reply that tells them unasked, as of a target in process, is taken.
        """
        told = plain
        if not any(piece.top for piece in plain.pieces):
            self.note(f"{question.id}: plain's most probable tokens")
            asked = question.conversation(answers, self.options, TOP_LOGPROBS)
            timed, fault = await self._kept(self.sides[PLAIN], asked, again=True)
            if fault:
                self.measured.untold[question.id] = fault
                return
            told = timed.reply
        self.measured.plain_replies[question.id] = told
        for name in self.sides:
            if name != PLAIN:
                moved = self.measured.gap_drifts.setdefault(name, GapDrift())
                for found in self.measured.of(name, question.id):
                    moved.observe(told, found.reply)

    def _give_up(self, questions: Sequence[BenchPrompt], unanswered: BenchPrompt, but: str = "") -> None:
        """Questions that the sides (all `but` one) skip, since plain has no answer to `unanswered`."""
        why = f"not asked: plain has no answer to {unanswered.id}"
        for question in questions:
            for name in self.sides:
                if name != but:
                    self.measured.measurements.append(
                        Measurement(name, question.id, question.category, 0, ReplyTiming(), why)
                    )

    async def _kept(self, side: Contestant, conversation: ChatInput, *, again: bool) -> tuple[ReplyTiming, str]:
        """A reply as far as it came, of the side as it is after a fresh start, and why it came no further."""
        timed = ReplyTiming()
        try:
            async with side.fresh(again=again) as replies:
                await self._warm_up(replies)
                timed = ReplyTiming()  # whose clock begins now
                await _answer(replies, conversation, timed)
        except (Unreachable, ModelMissing):
            raise
        except EndpointError as error:
            return timed, str(error)
        return timed, ""

    async def _warm_up(self, replies: ReplySource) -> None:
        conversation = ChatInput([Message(role="user", content=_WARMING)], {**self.options, "num_predict": 1})
        await _answer(replies, conversation, ReplyTiming())


async def _answer(replies: ReplySource, conversation: ChatInput, timed: ReplyTiming) -> None:
    async with aclosing(replies.reply(conversation)) as events:
        async for event in events:
            timed.observe(event)


def comparison_faults(pairs: Sequence[tuple[Measurement, Measurement]]) -> Iterator[str]:
    """Faults that make a speedup of these (plain, side) pairs meaningless, each fault once."""
    found = {fault: None for plain, side in pairs for fault in (_fault(plain, side), _fault(side, plain)) if fault}
    yield from found


def _fault(one: Measurement, other: Measurement) -> str:
    """Why a reply can't be compared: it broke off, is empty, or shorter than the other one without an end.

    One that num_predict ended in its thinking isn't empty: that is timed and compared. A token less is no fault:
    servers from 0.12.11 to 0.15.4 lose the last one of num_predict.
    """
    if one.fault:
        return f"{one.side}: {one.fault}"
    if one.reply.reason is None:
        return f"{one.side}: the reply broke off"
    if not one.reply.text or (one.reply.reason == "stop" and not one.reply.answer):
        return f"{one.side}: the reply is empty"
    tokens, others = one.reply.stats.eval_count, other.reply.stats.eval_count
    if one.reply.reason == "length" and tokens < others - 1:
        return f"{one.side}: the reply was cut at {tokens} tokens, where {other.side} gave {others}"
    return ""
