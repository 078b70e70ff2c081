"""What the target alone answers."""

from __future__ import annotations

from dataclasses import dataclass

LENGTH = 48  # tokens


@dataclass(frozen=True)
class Alone:
    """The target's own reply: what each of its tokens shows, and how far the best token led at each place."""

    tokens: tuple[str, ...]
    gaps: tuple[float, ...]  # log-probability of the best token less that of the second

    @property
    def text(self) -> str:
        return "".join(self.tokens)

    def gap_at(self, other: str) -> float:
        """The gap at the first token that `other` doesn't have."""
        offset = 0
        for token, gap in zip(self.tokens, self.gaps, strict=True):
            if not other.startswith(token, offset):
                return gap
            offset += len(token)
        return float("inf")  # it only ends elsewhere
