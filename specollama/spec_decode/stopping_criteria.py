"""Stopping criteria of a reply: stop strings and num_predict, for tokens that arrive in bursts.

Tokens are checked one by one in the order in which they were sampled; the earliest condition wins. Text that may be
the start of a stop string is held back until later tokens decide it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Generic, TypeVar

from specollama.spec_decode.types import DoneReason

TokenTag = TypeVar("TokenTag")


@dataclass(slots=True)
class StoppingCriteria(Generic[TokenTag]):
    """Cuts a reply at the first of its stop strings, or after `limit` tokens (None: no limit).

    Each text has a tag (its origin), and so has each released piece of it. A stop string matches only within the
    reply, never across the end of the prompt, and is not part of the visible text.
    """

    stops: Sequence[str] = ()
    limit: int | None = None
    tokens: int = 0
    reason: DoneReason | None = None
    _held: list[tuple[str, TokenTag]] = field(default_factory=list)

    @property
    def remaining(self) -> int | None:
        """Tokens left until the limit; None: no limit."""
        return None if self.limit is None else max(0, self.limit - self.tokens)

    def add(self, text: str, tag: TokenTag, tokens: int = 1) -> list[tuple[str, TokenTag]]:
        """Add one token (or a character of several tokens). Returns the pieces of text that may be shown now.

        Once `reason` is set the reply is over, and `add` must not be called.
        """
        assert self.reason is None, "the reply is over"
        self.tokens += tokens
        self._held.append((text, tag))
        joined = "".join(piece for piece, _ in self._held)
        found = [place for stop in self.stops if stop and (place := joined.find(stop)) >= 0]
        if found:
            return self._finish(DoneReason.STOP, min(found))
        if self.limit is not None and self.tokens >= self.limit:
            return self._finish(DoneReason.LENGTH, len(joined))
        return self._release(len(joined) - _possible_beginning(joined, self.stops))

    def flush(self, reason: DoneReason = DoneReason.STOP) -> list[tuple[str, TokenTag]]:
        """End the reply because the target ended it. Returns the text held back so far."""
        return self._finish(reason, sum(len(piece) for piece, _ in self._held))

    def _finish(self, reason: DoneReason, length: int) -> list[tuple[str, TokenTag]]:
        self.reason = reason
        released = self._release(length)
        self._held.clear()
        return released

    def _release(self, length: int) -> list[tuple[str, TokenTag]]:
        """Remove the first `length` characters from the held-back text, and return them."""
        released, kept = [], []
        for text, tag in self._held:
            now, later = text[: max(0, length)], text[max(0, length) :]
            length -= len(text)
            released += [(now, tag)] if now else []
            kept += [(later, tag)] if later else []
        self._held = kept
        return released


def _possible_beginning(text: str, stops: Sequence[str]) -> int:
    """Length of the longest suffix of `text` that is a proper prefix of a stop string."""
    longest = max((len(stop) for stop in stops), default=0) - 1
    for length in range(min(longest, len(text)), 0, -1):
        if any(stop.startswith(text[-length:]) for stop in stops):
            return length
    return 0
