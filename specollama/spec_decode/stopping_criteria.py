"""Ends a reply at stop strings and num_predict, over tokens that arrive in bursts.

Tokens are judged one after another, in the order in which they were sampled, however many arrive at once: the
earliest condition wins. Text that may be the beginning of a stop string is held back until that is decided.
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

    Each text comes with a tag (where it is from), which its pieces keep. A stop string is matched within the
    reply alone, never with the prompt's end, and is not shown itself.
    """

    stops: Sequence[str] = ()
    limit: int | None = None
    tokens: int = 0
    reason: DoneReason | None = None
    _held: list[tuple[str, TokenTag]] = field(default_factory=list)

    @property
    def remaining(self) -> int | None:
        """Tokens that may still follow; None: no limit."""
        return None if self.limit is None else max(0, self.limit - self.tokens)

    def add(self, text: str, tag: TokenTag, tokens: int = 1) -> list[tuple[str, TokenTag]]:
        """One more token (or a character that took several): the pieces that may be shown now.

        Once `reason` is set the reply is over, and nothing more may be fed.
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
        """The target ended its reply. Returns the text that was held back."""
        return self._finish(reason, sum(len(piece) for piece, _ in self._held))

    def _finish(self, reason: DoneReason, length: int) -> list[tuple[str, TokenTag]]:
        self.reason = reason
        released = self._release(length)
        self._held.clear()
        return released

    def _release(self, length: int) -> list[tuple[str, TokenTag]]:
        """Take the first `length` characters out of what is held."""
        released, kept = [], []
        for text, tag in self._held:
            now, later = text[: max(0, length)], text[max(0, length) :]
            length -= len(text)
            released += [(now, tag)] if now else []
            kept += [(later, tag)] if later else []
        self._held = kept
        return released


def _possible_beginning(text: str, stops: Sequence[str]) -> int:
    """The length of the longest end of `text` that a stop string begins with."""
    longest = max((len(stop) for stop in stops), default=0) - 1
    for length in range(min(longest, len(text)), 0, -1):
        if any(stop.startswith(text[-length:]) for stop in stops):
            return length
    return 0
