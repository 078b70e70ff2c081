"""A benchmark's sides, every reply of which is traced."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Callable
from dataclasses import dataclass, field

from specollama.bench.sides import Side
from specollama.config import PairSettings
from specollama.pairs import Conversation
from specollama.stats import Event
from specollama.trace.recorder import TraceFile, replied


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

    def reply(self, conversation: Conversation) -> AsyncGenerator[Event, None]:
        return replied(self.side, conversation, self.settings, self.trace, self.labels.doing)
