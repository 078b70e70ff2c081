"""How many tokens to draft in the next round, and whether to draft at all."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from specollama.spec_decode.types import Draft, RoundRecord, VerifyResult

MIN_TESTED_TOKENS = 24  # tokens
MIN_ACCEPTANCE_RATE = 0.1  # acceptance rate
WARM_UP_ROUNDS = 2  # rounds, in which slots read the prompt for the first time
MIN_ROUNDS = 6
MAX_IDLE_ROUNDS = 64  # rounds in a row
MIN_SPEEDUP = 0.95  # of plain speed: a little below 1, since both sides are measured on a busy machine


class Lookahead(Protocol):
    """Decides the length of the next draft from the outcomes of the earlier ones."""

    def max_draft_tokens(self) -> int:
        """Tokens to draft at most, 0 or more."""
        ...

    def verify_length(self, draft: Draft) -> int:
        """How many of the drafted tokens to verify."""
        ...

    def accept_probabilities(self, draft: Draft) -> Sequence[float]:
        """Each drafted token's probability of acceptance, given its predecessors; empty where unknown."""
        ...

    def learn(self, round: RoundRecord) -> None:
        """Learn from the last round."""
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
        """A fixed length doesn't learn."""

    def __str__(self) -> str:
        return str(self.tokens)


@dataclass(slots=True)
class ScheduledLookahead:
    """A length for each round, the first one first; the last one for all that come after."""

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
    """Longer after a draft was accepted whole, shorter after two in a row that were accepted less than half.

    One poor round alone changes nothing: a single surprising word in predictable text is common.
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
    """Stops speculation that doesn't pay, once enough rounds were seen.

    `plain_seconds_per_token`: seconds that the target takes for a token alone; None where that was not measured, and
    only the acceptance is watched.
    """

    plain_seconds_per_token: float | None = None
    _tested: int = 0
    _accepted: int = 0
    _rounds: int = 0
    _emitted: int = 0
    _seconds: float = 0.0
    _idle: int = 0  # rounds in which nothing was drafted, since the last draft

    def observe(self, verdict: VerifyResult, tokens: int, seconds: float) -> None:
        """Record a round: its tokens and its seconds.

        The first ones don't count: slots read the prompt then. Nor do those in which nothing was found to draft: what
        isn't there yet may come, as where a text is repeated with changes.
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
        """The reason to stop drafting; None while drafting may still pay."""
        if self._tested >= MIN_TESTED_TOKENS and self._accepted < MIN_ACCEPTANCE_RATE * self._tested:
            return f"almost nothing of the draft is accepted ({self._accepted} of {self._tested} tested tokens)"
        if self._idle >= MAX_IDLE_ROUNDS:
            return f"nothing was found to draft for {self._idle} rounds"
        if self.plain_seconds_per_token is None or self._rounds < WARM_UP_ROUNDS + MIN_ROUNDS or not self._seconds:
            return None
        factor = self._emitted / self._seconds * self.plain_seconds_per_token
        return f"rounds are slower than plain here ({factor:.2f}x)" if factor < MIN_SPEEDUP else None
