"""How many tokens to draft in the next round, and whether to draft at all."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from specollama.spec_decode.types import Draft, Round, Verdict

TESTED_ENOUGH = 24  # tokens
HOPELESS = 0.1  # acceptance rate
WARM_UP = 2  # rounds, in which slots read the prompt for the first time
ROUNDS_ENOUGH = 6
IDLE_ENOUGH = 64  # rounds in a row
TOO_SLOW = 0.95  # of plain speed: a little below 1, since both sides are measured on a busy machine


class Lookahead(Protocol):
    """Decides the length of the next draft from the outcomes of the earlier ones."""

    def next(self) -> int:
        """Tokens to draft at most, 0 or more."""
        ...

    def send(self, draft: Draft) -> int:
        """How many of the drafted tokens to have scored."""
        ...

    def forecast(self, draft: Draft) -> Sequence[float]:
        """How likely each drafted token is accepted, if those before it are; empty where that isn't known."""
        ...

    def learn(self, round: Round) -> None:
        """What came of the last round."""
        ...

    def __str__(self) -> str:
        """For the status line: `4`, or `1-8`."""
        ...


@dataclass(frozen=True, slots=True)
class FixedLookahead:
    """Always the same length; 0 drafts nothing."""

    tokens: int

    def next(self) -> int:
        return self.tokens

    def send(self, draft: Draft) -> int:
        return len(draft.tokens)

    def forecast(self, draft: Draft) -> Sequence[float]:
        return ()

    def learn(self, round: Round) -> None:
        """What happened changes nothing."""

    def __str__(self) -> str:
        return str(self.tokens)


@dataclass(slots=True)
class StagedLookahead:
    """A length for each round, the first one first; the last one for all that come after."""

    lengths: tuple[int, ...]
    _rounds: int = 0

    def next(self) -> int:
        return self.lengths[min(self._rounds, len(self.lengths) - 1)]

    def send(self, draft: Draft) -> int:
        return len(draft.tokens)

    def forecast(self, draft: Draft) -> Sequence[float]:
        return ()

    def learn(self, round: Round) -> None:
        self._rounds += 1

    def __str__(self) -> str:
        return staged(self.lengths)


def staged(lengths: Sequence[int]) -> str:
    """Lengths by round, for the status line."""
    return ", ".join(map(str, lengths)) + ", ..." * (len(lengths) > 1)


@dataclass(slots=True)
class AdaptiveLookahead:
    """Longer after a draft was accepted whole, shorter after two in a row that were accepted less than half.

    One poor round alone changes nothing: a single surprising word in predictable text is common.
    """

    least: int = 1
    most: int = 8
    tokens: int = 4
    _poor: int = 0

    def __post_init__(self) -> None:
        self.tokens = min(max(self.tokens, self.least), self.most)

    def next(self) -> int:
        return self.tokens

    def send(self, draft: Draft) -> int:
        return len(draft.tokens)

    def forecast(self, draft: Draft) -> Sequence[float]:
        return ()

    def learn(self, round: Round) -> None:
        drafted, accepted = round.verdict.drafted, round.verdict.accepted
        if drafted == 0:
            return
        self._poor = self._poor + 1 if accepted * 2 < drafted else 0
        if accepted == drafted:
            self.tokens = min(self.most, self.tokens + 2)
        elif self._poor >= 2:
            self.tokens = max(self.least, self.tokens // 2)
            self._poor = 0

    def __str__(self) -> str:
        return f"{self.least}-{self.most}" if self.least < self.most else str(self.least)


@dataclass(slots=True)
class Patience:
    """Watches whether speculation is worth going on with, once enough was seen.

    `plain_step`: seconds that the target takes for a token alone; None where that was not measured, and only the
    acceptance is watched.
    """

    plain_step: float | None = None
    _tested: int = 0
    _accepted: int = 0
    _rounds: int = 0
    _emitted: int = 0
    _seconds: float = 0.0
    _idle: int = 0  # rounds in which nothing was drafted, since the last draft

    def learn(self, verdict: Verdict, tokens: int, seconds: float) -> None:
        """A round brought so many tokens, and took so long.

        The first ones don't count: slots read the prompt then. Nor do those in which nothing was found to draft: what
        isn't there yet may come, as where a text is repeated with changes.
        """
        self._idle = 0 if verdict.drafted else self._idle + 1
        if self._idle:
            return
        self._tested += verdict.tested
        self._accepted += verdict.accepted
        self._rounds += 1
        if self._rounds > WARM_UP:
            self._emitted += tokens
            self._seconds += seconds

    def lost(self) -> str | None:
        """Why to stop drafting; None while it may still pay."""
        if self._tested >= TESTED_ENOUGH and self._accepted < HOPELESS * self._tested:
            return f"almost nothing of the draft is accepted ({self._accepted} of {self._tested} tested tokens)"
        if self._idle >= IDLE_ENOUGH:
            return f"nothing was found to draft for {self._idle} rounds"
        if self.plain_step is None or self._rounds < WARM_UP + ROUNDS_ENOUGH or not self._seconds:
            return None
        factor = self._emitted / self._seconds * self.plain_step
        return f"rounds are slower than plain here ({factor:.2f}x)" if factor < TOO_SLOW else None
