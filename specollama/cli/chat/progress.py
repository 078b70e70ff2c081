"""One line of counts about a reply's speculation, during the reply and after it. Pure."""

from __future__ import annotations

from dataclasses import dataclass, field

from specollama.spec_decode.events import Done, Event, Status, Text, decode_rate, first_burst
from specollama.spec_decode.metrics import ReplyStepTimes
from specollama.spec_decode.types import RoundRecord

WARN, FULL = 0.75, 0.9
"""Shares of the context that are announced: early enough to do something about it."""


@dataclass(slots=True)
class ReplyProgress:
    """Counts of one reply. Times in seconds of any clock.

    The rate is that of decoding: tokens after the first burst over the time from it to now, so that neither a burst nor
    the reading of the prompt counts.
    """

    status: Status | None = None
    rounds: int = 0
    drafted: int = 0
    accepted: int = 0
    emitted: int = 0
    tokens: int = 0
    thought: int = 0  # tokens of thinking among them
    first: float | None = None  # when the first text came
    now: float = 0.0
    thinking_ended: float | None = None
    steps: ReplyStepTimes = field(default_factory=ReplyStepTimes)
    _rounds: list[int] = field(default_factory=list)  # of the tokens

    def round(self, done: RoundRecord) -> None:
        verdict = done.result
        self.steps.add(done)
        if verdict.drafted:
            self.rounds += 1
            self.drafted += verdict.drafted
            self.accepted += verdict.accepted
            self.emitted += len(verdict.emitted)

    def event(self, event: Event, now: float) -> None:
        self.now = now
        if isinstance(event, Status):
            self.status = event
        elif isinstance(event, Text):
            self._text(event, now)
        elif isinstance(event, Done):
            self.tokens = event.stats.eval_count or self.tokens

    def _text(self, event: Text, now: float) -> None:
        if self.first is None:
            self.first = now
        self.tokens += 1
        self._rounds.append(event.round)
        if event.thinking:
            self.thought += 1
        elif self.thought and self.thinking_ended is None:
            self.thinking_ended = now

    @property
    def rate(self) -> float | None:
        """Tokens per second; None where there is nothing to time."""
        return (
            None if self.first is None else decode_rate(self.tokens, first_burst(self._rounds), self.now - self.first)
        )

    def line(self) -> str:
        """`on (local, lookahead 1-8) · 1.6x plain (estimated) · 38 of 52 drafted tokens accepted · 2.9 per round ·
        21.4 tok/s`, as far as it is known.
        """
        parts = [f"{'on' if self.status.on else 'off'} ({self.status.detail.split('; ')[0]})"] if self.status else []
        if (gain := self.steps.gain) is not None:
            parts.append(f"{gain:.1f}x plain (estimated)")
        if self.drafted:
            parts.append(f"{self.accepted} of {self.drafted} drafted tokens accepted")
        if self.rounds:
            parts.append(f"{self.emitted / self.rounds:.1f} per round")
        if self.rate is not None:
            parts.append(f"{self.rate:.1f} tok/s")
        return " · ".join(parts)


@dataclass(frozen=True, slots=True)
class ContextUsage:
    """How full the context is, in tokens. `length` None: not known."""

    used: int
    length: int | None

    @property
    def share(self) -> float | None:
        return self.used / self.length if self.length else None

    @property
    def full(self) -> bool:
        """Whether not even a short question fits."""
        return self.length is not None and self.used + 8 >= self.length

    def text(self) -> str:
        """`1234 of 4096 tokens`; "" where nothing is known."""
        return f"{self.used} of {self.length} tokens" if self.length and self.used else ""

    def announcement(self, before: ContextUsage) -> str:
        """What to say when the reply brought it past a mark; "" otherwise."""
        if self.length is None or self.share is None:
            return ""
        crossed = any(self.share >= mark > (before.share or 0.0) for mark in (WARN, FULL)) or self.full
        if not crossed:
            return ""
        how = "is full" if self.full else f"is {self.share:.0%} full"
        return f"the context {how} ({self.text()}): {self.advice}"

    @property
    def advice(self) -> str:
        larger = 2 * self.length if self.length else 8192
        return f"/set parameter num_ctx {larger} makes it larger, /undo and /clear make room"
