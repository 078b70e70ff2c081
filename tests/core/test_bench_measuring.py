"""What is asked and judged of replies that think, over a side that says what is written down."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator
from dataclasses import dataclass, field
from typing import Any

import pytest

from specollama.bench.measuring import Measured, Run, faults
from specollama.bench.prompts import Prompt
from specollama.bench.sides import PLAIN
from specollama.pairs import Conversation
from specollama.stats import Done, Event, Stats, Text
from specollama.types import DoneReason, Origin

TURNS = Prompt("p", "chat", ("Colour?", "Why?"))


@dataclass
class Thinker:
    """A side that thinks, and then answers if it has an answer."""

    answer: str
    reason: DoneReason
    heard: list[list[dict[str, Any]]] = field(default_factory=list)

    async def reply(self, conversation: Conversation) -> AsyncGenerator[Event, None]:
        self.heard.append([message.body() for message in conversation.messages])
        yield Text("Hm.", Origin.PLAIN, thinking=True)
        if self.answer:
            yield Text(self.answer, Origin.PLAIN)
        yield Done(self.reason, Stats(eval_count=2))


def measured(side: Thinker, turns: int) -> Measured:
    run = Run({PLAIN: side, "other": side}, {}, 1, Measured())
    asyncio.run(run.ask(TURNS, turns))
    return run.measured


def faults_of(found: Measured, question: str) -> list[str]:
    return list(faults(list(zip(found.of(PLAIN, question), found.of("other", question), strict=True))))


def test_the_next_turn_follows_the_answer_without_its_thinking() -> None:
    side = Thinker("Blue.", DoneReason.STOP)
    found = measured(side, 2)

    assert [message["content"] for message in side.heard[-1]] == ["Colour?", "Blue.", "Why?"]
    assert [faults_of(found, question) for question in ("p.1", "p.2")] == [[], []]
    told = found.measurements[0].as_object()
    assert (told["text"], told["answer"]) == ("Hm.Blue.", "Blue.")


@pytest.mark.parametrize(
    ("reason", "fault"),
    [(DoneReason.STOP, ["plain: the reply is empty", "other: the reply is empty"]), (DoneReason.LENGTH, [])],
)
def test_thinking_alone_is_no_answer_but_for_one_that_was_cut(reason: DoneReason, fault: list[str]) -> None:
    assert faults_of(measured(Thinker("", reason), 1), "p") == fault


def test_after_thinking_alone_no_other_turn_is_asked() -> None:
    side = Thinker("", DoneReason.LENGTH)
    found = measured(side, 2)

    assert {len(messages) for messages in side.heard} == {1}
    why = "not asked: plain has no answer to p.1"
    assert faults_of(found, "p.2") == [f"plain: {why}", f"other: {why}"]
