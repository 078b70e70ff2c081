"""Lookahead policies (tokens to draft per round), and the monitor that stops speculation which doesn't pay."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from specollama.spec_decode.types import Draft, RoundRecord, VerifyResult

MIN_TESTED_TOKENS = 24  # tokens
MIN_ACCEPTANCE_RATE = 0.1  # acceptance rate
WARM_UP_ROUNDS = 2  # rounds not timed, because slots prefill the prompt in them
MIN_ROUNDS = 6
MAX_IDLE_ROUNDS = 64  # rounds in a row
MIN_SPEEDUP = 0.95  # of plain speed: a little below 1, since both sides are measured on a busy machine


class Lookahead(Protocol):
    """Decides the length of the next draft from the outcomes of the earlier ones."""

    def max_draft_tokens(self) -> int:
        """Tokens to draft at most, 0 or more."""
        ...

    def verify_length(self, draft: Draft) -> int:
        """Number of leading draft tokens to verify."""
        ...

    def accept_probabilities(self, draft: Draft) -> Sequence[float]:
        """Probability that each drafted token is accepted, given its predecessors are; empty if unknown."""
        ...

    def learn(self, round: RoundRecord) -> None:
        """Take note of the outcome of the last round."""
        ...

    def __str__(self) -> str:
        """For the status line: `4`, or `1-8`."""
        ...


@dataclass(frozen=True, slots=True)
class FixedLookahead:
    """Always the same length; 0 drafts nothing."""

    tokens: int

    def max_draft_tokens(self) -> int:
        return self.tokens

    def verify_length(self, draft: Draft) -> int:
        return len(draft.tokens)

    def accept_probabilities(self, draft: Draft) -> Sequence[float]:
        return ()

    def learn(self, round: RoundRecord) -> None:
        """Do nothing: the length is fixed."""

    def __str__(self) -> str:
        return str(self.tokens)


@dataclass(slots=True)
class ScheduledLookahead:
    """A fixed length per round, in order; the last one holds for all later rounds."""

    lengths: tuple[int, ...]
    _rounds: int = 0

    def max_draft_tokens(self) -> int:
        return self.lengths[min(self._rounds, len(self.lengths) - 1)]

    def verify_length(self, draft: Draft) -> int:
        return len(draft.tokens)

    def accept_probabilities(self, draft: Draft) -> Sequence[float]:
        return ()

    def learn(self, round: RoundRecord) -> None:
        self._rounds += 1

    def __str__(self) -> str:
        return schedule_text(self.lengths)


def schedule_text(lengths: Sequence[int]) -> str:
    """Lengths by round, for the status line."""
    return ", ".join(map(str, lengths)) + ", ..." * (len(lengths) > 1)


@dataclass(slots=True)
class AdaptiveLookahead:
    """Grows after a fully accepted draft; shrinks after two successive drafts with less than half accepted.

    A single poor round changes nothing: one surprising word in predictable text is common.
    """

    min_tokens: int = 1
    max_tokens: int = 8
    tokens: int = 4
    _poor_rounds: int = 0

    def __post_init__(self) -> None:
        self.tokens = min(max(self.tokens, self.min_tokens), self.max_tokens)

    def max_draft_tokens(self) -> int:
        return self.tokens

    def verify_length(self, draft: Draft) -> int:
        return len(draft.tokens)

    def accept_probabilities(self, draft: Draft) -> Sequence[float]:
        return ()

    def learn(self, round: RoundRecord) -> None:
        drafted, accepted = round.result.drafted, round.result.accepted
        if drafted == 0:
            return
        self._poor_rounds = self._poor_rounds + 1 if accepted * 2 < drafted else 0
        if accepted == drafted:
            self.tokens = min(self.max_tokens, self.tokens + 2)
        elif self._poor_rounds >= 2:
            self.tokens = max(self.min_tokens, self.tokens // 2)
            self._poor_rounds = 0

    def __str__(self) -> str:
        return f"{self.min_tokens}-{self.max_tokens}" if self.min_tokens < self.max_tokens else str(self.min_tokens)


@dataclass(slots=True)
class SpeculationMonitor:
    """Decides whether speculation still pays, once it has enough observations.

    `plain_seconds_per_token`: seconds of a plain decode step of the target. If it is None (not measured), the monitor
    checks only the acceptance rate.
    """

    plain_seconds_per_token: float | None = None
    _tested: int = 0
    _accepted: int = 0
    _rounds: int = 0
    _emitted: int = 0
    _seconds: float = 0.0
    _idle: int = 0  # rounds in which nothing was drafted, since the last draft

    def observe(self, verdict: VerifyResult, tokens: int, seconds: float) -> None:
        """Record a round: its verdict, tokens emitted and duration in seconds.

        The timing leaves out the first rounds, in which slots prefill the prompt, and rounds without a draft: prompt
        lookup may find matches later, for example in a text that is repeated with changes.
        """
        self._idle = 0 if verdict.drafted else self._idle + 1
        if self._idle:
            return
        self._tested += verdict.tested
        self._accepted += verdict.accepted
        self._rounds += 1
        if self._rounds > WARM_UP_ROUNDS:
            self._emitted += tokens
            self._seconds += seconds

    def stop_reason(self) -> str | None:
        """Reason to stop drafting; None while it may still pay."""
        if self._tested >= MIN_TESTED_TOKENS and self._accepted < MIN_ACCEPTANCE_RATE * self._tested:
            return f"almost nothing of the draft is accepted ({self._accepted} of {self._tested} tested tokens)"
        if self._idle >= MAX_IDLE_ROUNDS:
            return f"nothing was found to draft for {self._idle} rounds"
        if self.plain_seconds_per_token is None or self._rounds < WARM_UP_ROUNDS + MIN_ROUNDS or not self._seconds:
            return None
        factor = self._emitted / self._seconds * self.plain_seconds_per_token
        return f"rounds are slower than plain here ({factor:.2f}x)" if factor < MIN_SPEEDUP else None
