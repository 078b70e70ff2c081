"""A benchmark's sides, every reply of which is traced."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field

from specollama.config.settings import PairSettings
from specollama.pairs.request import Conversation
from specollama.pairs.trace.recorder import TraceFile, replied
from specollama.spec_decode.events import Event
from specollama.tools.bench.systems import Replies, Side


@dataclass(slots=True)
class Labels:
    """What is done at the moment, which the next reply's trace is labelled with."""

    note: Callable[[str], None]
    doing: str = field(default="", init=False)

    def __call__(self, what: str) -> None:
        self.doing = what
        self.note(what)


@dataclass(frozen=True, slots=True)
class TracedSide:
    """A side as it is. Log-probabilities aren't asked for: that would slow the replies that are timed."""

    side: Side
    settings: PairSettings
    trace: TraceFile
    labels: Labels

    @property
    def engine(self) -> str:
        return self.side.engine

    @property
    def remembers(self) -> bool:
        return self.side.remembers

    @asynccontextmanager
    async def fresh(self, *, again: bool) -> AsyncGenerator[Replies, None]:
        async with self.side.fresh(again=again) as replies:
            yield TracedReplies(replies, self)


@dataclass(frozen=True, slots=True)
class TracedReplies:
    """What a traced side answers with."""

    replies: Replies
    of: TracedSide

    def reply(self, conversation: Conversation) -> AsyncGenerator[Event, None]:
        side = self.of
        return replied(self.replies, conversation, side.settings, side.trace, side.labels.doing)
