"""A benchmark's sides, every reply of which is traced."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field

from specollama.config.settings import PairSettings
from specollama.pairs.request import ChatInput
from specollama.pairs.trace.recorder import TraceFile, traced_reply
from specollama.spec_decode.events import Event
from specollama.tools.bench.systems import Contestant, ReplySource


@dataclass(slots=True)
class TraceLabels:
    """The current step of the benchmark; it labels the next reply's trace."""

    note: Callable[[str], None]
    doing: str = field(default="", init=False)

    def __call__(self, what: str) -> None:
        self.doing = what
        self.note(what)


@dataclass(frozen=True, slots=True)
class TracedContestant:
    """A side whose replies are traced. It requests no log-probabilities, which would slow the timed replies."""

    side: Contestant
    settings: PairSettings
    trace: TraceFile
    labels: TraceLabels

    @property
    def engine(self) -> str:
        return self.side.engine

    @property
    def remembers(self) -> bool:
        return self.side.remembers

    @asynccontextmanager
    async def fresh(self, *, again: bool) -> AsyncGenerator[ReplySource, None]:
        async with self.side.fresh(again=again) as replies:
            yield TracedReplySource(replies, self)


@dataclass(frozen=True, slots=True)
class TracedReplySource:
    """Source of a traced side's replies."""

    replies: ReplySource
    of: TracedContestant

    def reply(self, conversation: ChatInput) -> AsyncGenerator[Event, None]:
        side = self.of
        return traced_reply(self.replies, conversation, side.settings, side.trace, side.labels.doing)
