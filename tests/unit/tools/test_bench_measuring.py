"""What is asked of the sides, when, and from which start: over sides that write down what they hear."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from specollama.pairs.request import ChatInput
from specollama.spec_decode.events import Done, Event, Text
from specollama.spec_decode.metrics import Stats
from specollama.spec_decode.types import DoneReason, Origin
from specollama.tools.bench.fresh import LearnedState
from specollama.tools.bench.prompts import Prompt
from specollama.tools.bench.runner import BenchRun, Measurements, comparison_faults
from specollama.tools.bench.summary import contestant_figures
from specollama.tools.bench.systems import PLAIN, ReplySource

TURNS = Prompt("p", "chat", ("Colour?", "Why?"))


@dataclass
class Thinker:
    """A side that thinks, and then answers if it has an answer. `starts`: whether each start repeats a reply."""

    answer: str
    reason: DoneReason
    engine: str = ""
    remembers: bool = False
    heard: list[list[dict[str, Any]]] = field(default_factory=list)
    limits: list[int] = field(default_factory=list)
    starts: list[bool] = field(default_factory=list)

    @asynccontextmanager
    async def fresh(self, *, again: bool) -> AsyncGenerator[ReplySource, None]:
        self.starts.append(again)
        yield self

    async def reply(self, conversation: ChatInput) -> AsyncGenerator[Event, None]:
        self.heard.append([message.body() for message in conversation.messages])
        self.limits.append(conversation.options["num_predict"])
        yield Text("Hm.", Origin.PLAIN, thinking=True)
        if self.answer:
            yield Text(self.answer, Origin.PLAIN)
        yield Done(self.reason, Stats(eval_count=2))

    def said(self) -> list[str]:
        """The last of what the user said, request by request."""
        return [str(messages[-1]["content"]) for messages in self.heard]


def measured(side: Thinker, turns: int, other: Thinker | None = None, repeat: int = 1) -> Measurements:
    run = BenchRun({PLAIN: side, "other": other or side}, {"num_predict": 8}, repeat, Measurements())
    asyncio.run(run.run_prompt(TURNS, turns))
    return run.measured


def faults_of(found: Measurements, question: str) -> list[str]:
    return list(comparison_faults(list(zip(found.of(PLAIN, question), found.of("other", question), strict=True))))


def test_no_side_hears_a_prompt_before_its_first_timed_reply() -> None:
    plain, other = Thinker("Blue.", DoneReason.STOP), Thinker("Blue.", DoneReason.STOP)
    run = BenchRun({PLAIN: plain, "other": other}, {"num_predict": 8}, 2, Measurements())

    asyncio.run(run.warm_up())
    asyncio.run(run.run_prompt(TURNS, 1))
    assert other.said() == ["Hello.", "Hello.", "Colour?", "Hello.", "Colour?"]
    assert other.limits == [1, 1, 8, 1, 8]
    assert other.starts == [False, False, True]
    assert plain.said() == [*other.said(), "Hello.", "Colour?"]  # at last, to tell its most probable tokens
    assert [(each.side, each.repeat) for each in run.measured.measurements] == [
        *((PLAIN, 0), ("other", 0), (PLAIN, 1), ("other", 1))
    ]


def test_a_repeat_to_a_side_that_remembers_is_seen_before_and_to_a_fresh_one_it_is_not() -> None:
    plain = Thinker("Blue.", DoneReason.STOP)
    other = Thinker("Blue.", DoneReason.STOP, engine="http://other", remembers=True)
    found = measured(plain, 1, other, repeat=3)

    assert [each.seen_before for each in found.of("other", "p")] == [False, True, True]
    assert [each.seen_before for each in found.of(PLAIN, "p")] == [False, False, False]
    assert [each.prompt_cached for each in found.of("other", "p")] == [False, True, True]
    assert found.of("other", "p")[1].as_object()["seen_before"] is True


def test_a_prompt_that_plain_has_put_into_a_shared_engines_cache_is_not_compared_end_to_end() -> None:
    sides = [Thinker("Blue.", DoneReason.STOP, engine="http://one", remembers=True) for _ in range(2)]
    found = measured(sides[0], 1, sides[1], repeat=2)

    assert [each.prompt_cached for each in found.of(PLAIN, "p")] == [False, True]
    assert [each.prompt_cached for each in found.of("other", "p")] == [True, True]
    [prompt] = contestant_figures(found, "other").prompts
    assert (prompt.overall_pairs, len(prompt.seen_overall_pairs)) == ((), 1)


def test_what_is_learnt_goes_from_prompt_to_prompt_and_never_from_a_reply_to_its_repeat(tmp_path: Path) -> None:
    state, kept = LearnedState(tmp_path), tmp_path / "planner" / "pair.json"
    kept.parent.mkdir()

    def reply(what: str, *, again: bool) -> str:
        """What the reply found there; `what` it learnt is added."""
        state.begin(again=again)
        known = kept.read_text() if kept.exists() else ""
        kept.write_text(known + what)
        return known

    assert [reply("a", again=False), reply("a", again=True), reply("a", again=True)] == ["", "", ""]
    assert [reply("b", again=False), reply("b", again=True)] == ["a", "a"]
    assert kept.read_text() == "ab"


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
