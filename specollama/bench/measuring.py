"""The measurements: every prompt to every side, in turn, in one run."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import aclosing
from dataclasses import dataclass, field
from typing import Any

from specollama.bench.comparison import Reply
from specollama.bench.near_ties import Movements
from specollama.bench.prompts import Prompt
from specollama.bench.sides import PLAIN, Side
from specollama.bench.timing import Timed
from specollama.errors import EndpointError, ModelMissing, Unreachable
from specollama.pairs import Conversation
from specollama.report import stats_object
from specollama.wire import Message

TOLD = 5
"""Most probable tokens that plain is asked for: two make the gap, the others catch those that changed places."""


@dataclass(frozen=True, slots=True)
class Question:
    """One turn of a prompt. `said`: the user's turns up to it."""

    id: str
    category: str
    said: tuple[str, ...]

    def conversation(self, answers: Sequence[str], options: Mapping[str, Any], top: int = 0) -> Conversation:
        """`answers`: to the turns before, the same for every side."""
        messages = [Message(role="user", content=self.said[0])]
        for answer, said in zip(answers, self.said[1:], strict=True):
            messages += [Message(role="assistant", content=answer), Message(role="user", content=said)]
        return Conversation(messages, options, top_logprobs=top)


def questions(prompt: Prompt, turns: int) -> list[Question]:
    """The first `turns` turns of a prompt, each to be answered after those before it."""
    count = min(turns, len(prompt.turns))
    names = [prompt.id if count == 1 else f"{prompt.id}.{number}" for number in range(1, count + 1)]
    return [Question(name, prompt.category, prompt.turns[:number]) for number, name in enumerate(names, 1)]


@dataclass(frozen=True, slots=True)
class Measurement:
    """One reply of one side. `fault`: why it broke off; "" when it is whole."""

    side: str
    question: str
    category: str
    repeat: int
    timed: Timed
    fault: str = ""

    @property
    def reply(self) -> Reply:
        return self.timed.reply

    def as_object(self) -> dict[str, Any]:
        """All that was measured; durations in nanoseconds."""
        timed = self.timed
        return {
            "side": self.side,
            "prompt": self.question,
            "category": self.category,
            "repeat": self.repeat,
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
class Measured:
    """What a run has measured so far. `told`: plain's replies with their most probable tokens, by question."""

    measurements: list[Measurement] = field(default_factory=list)
    told: dict[str, Reply] = field(default_factory=dict)
    movements: dict[str, Movements] = field(default_factory=dict)  # by side

    def of(self, side: str, question: str) -> list[Measurement]:
        return [each for each in self.measurements if (each.side, each.question) == (side, question)]

    def questions(self) -> dict[str, str]:
        """The questions measured, with their kinds."""
        return {each.question: each.category for each in self.measurements}


@dataclass(slots=True)
class Run:
    """One benchmark. `options`: of every reply; `note` is told what is done at the moment."""

    sides: Mapping[str, Side]
    options: Mapping[str, Any]
    repeat: int
    measured: Measured
    note: Callable[[str], None] = lambda what: None

    async def load(self, prompt: Prompt) -> None:
        """A reply of every side, not counted: models are loaded, and routes measured where they do so."""
        [question] = questions(prompt, 1)
        for name, side in self.sides.items():
            self.note(f"loading: {name}")
            await _answer(side, question.conversation([], self.options))

    async def ask(self, prompt: Prompt, turns: int) -> None:
        """Every turn of a prompt, `repeat` times to all sides in turn; plain's answers make the conversation.

        Raises Unreachable, ModelMissing and UsageErrors; another failure of a server is kept as a fault of the reply.
        """
        answers: list[str] = []
        asked = questions(prompt, turns)
        for place, question in enumerate(asked):
            self.note(f"{question.id}: warming up")
            told, fault = await self._warm(question, answers)
            if fault:
                self._give_up([question], question, fault)
                self._give_up(asked[place + 1 :], question)
                return
            for repeat in range(self.repeat):
                for name, side in self.sides.items():
                    self.note(f"{question.id}: {name}, {repeat + 1} of {self.repeat}")
                    await self._measure(name, side, question, answers, repeat)
            if not told.answer and asked[place + 1 :]:
                self._give_up(asked[place + 1 :], question)
                return
            answers.append(told.answer)

    async def _warm(self, question: Question, answers: Sequence[str]) -> tuple[Reply, str]:
        """A reply of every side that isn't counted; plain's, with its most probable tokens, is the answer.

        Where that one fails: why, and no other side is asked. So every side (its draft model and its lanes, too) has
        the prompt in its cache when it is timed, and plain's timed replies aren't slowed by asking for
        log-probabilities.
        """
        plain, fault = await _kept(self.sides[PLAIN], question.conversation(answers, self.options, TOLD))
        if fault:
            return plain.reply, fault
        self.measured.told[question.id] = plain.reply
        for name, side in self.sides.items():
            if name != PLAIN:
                await _kept(side, question.conversation(answers, self.options))
        return plain.reply, ""

    def _give_up(self, questions: Sequence[Question], unanswered: Question, fault: str = "") -> None:
        """Questions that aren't asked, since plain has no answer to one of them or before them. `fault`: plain's."""
        unasked = f"not asked: plain has no answer to {unanswered.id}"
        for question in questions:
            for name in self.sides:
                why = (fault if name == PLAIN else "") or unasked
                self.measured.measurements.append(Measurement(name, question.id, question.category, 0, Timed(), why))

    async def _measure(self, name: str, side: Side, question: Question, answers: Sequence[str], repeat: int) -> None:
        timed, fault = await _kept(side, question.conversation(answers, self.options))
        found = Measurement(name, question.id, question.category, repeat, timed, fault)
        self.measured.measurements.append(found)
        if name != PLAIN:
            moved = self.measured.movements.setdefault(name, Movements())
            moved.learn(self.measured.told[question.id], found.reply)


async def _kept(side: Side, conversation: Conversation) -> tuple[Timed, str]:
    """A reply as far as it came, and why it came no further."""
    timed = Timed()
    try:
        await _answer(side, conversation, timed)
    except (Unreachable, ModelMissing):
        raise
    except EndpointError as error:
        return timed, str(error)
    return timed, ""


async def _answer(side: Side, conversation: Conversation, timed: Timed | None = None) -> Timed:
    timed = Timed() if timed is None else timed
    async with aclosing(side.reply(conversation)) as events:
        async for event in events:
            timed.take(event)
    return timed


def faults(pairs: Sequence[tuple[Measurement, Measurement]]) -> Iterator[str]:
    """What makes a factor of these (plain, side) pairs meaningless, each fault once."""
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
