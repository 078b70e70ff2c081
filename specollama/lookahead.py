"""How many tokens to draft in the next round."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol


class Lookahead(Protocol):
    """Decides the length of the next draft from the outcomes of the earlier ones."""

    def next(self) -> int:
        """Tokens to draft, 1 or more."""
        ...

    def learn(self, drafted: int, accepted: int) -> None:
        """A round drafted so many tokens, and so many were accepted."""
        ...

    def __str__(self) -> str:
        """For the status line: `4`, or `1-8`."""
        ...


@dataclass(frozen=True, slots=True)
class FixedLookahead:
    tokens: int

    def next(self) -> int:
        return self.tokens

    def learn(self, drafted: int, accepted: int) -> None:
        """What happened changes nothing."""

    def __str__(self) -> str:
        return str(self.tokens)


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

    def learn(self, drafted: int, accepted: int) -> None:
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
