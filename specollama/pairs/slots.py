"""Shares a target's server slots among concurrent replies. It only counts them; no reply waits for a slot."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

from specollama.config.settings import PairSettings
from specollama.spec_decode.lookahead import Lookahead
from specollama.spec_decode.types import Draft, RoundRecord

DEFAULT_SLOTS = 8  # concurrent requests of a target, if the configuration doesn't give the number
_MIN_SLOTS = 2  # minimum slots of a speculated reply: one row, and one drafted token


def slots_of(settings: PairSettings) -> int:
    """Concurrent requests that the target works on at once."""
    return settings.lanes or DEFAULT_SLOTS


@dataclass(slots=True)
class SlotPool:
    """Counts the slots in use. `total`: requests that the target runs at once; a plain reply takes one slot."""

    total: int
    _speculated: int = 0
    _plain: int = 0

    @property
    def has_room(self) -> bool:
        """Whether one more reply can be speculated with a fair share for each."""
        return self._left // (self._speculated + 1) >= _MIN_SLOTS

    @property
    def fair_share(self) -> int:
        """Slots that each speculated reply may use now."""
        return max(_MIN_SLOTS, self._left // max(1, self._speculated))

    @property
    def _left(self) -> int:
        return self.total - self._plain

    @contextmanager
    def speculated_reply(self) -> Iterator[None]:
        """Count a speculated reply while the context is open."""
        self._speculated += 1
        try:
            yield
        finally:
            self._speculated -= 1

    @contextmanager
    def plain_reply(self) -> Iterator[None]:
        """Count a plain reply while the context is open."""
        self._plain += 1
        try:
            yield
        finally:
            self._plain -= 1


@dataclass(frozen=True, slots=True)
class SharedLookahead:
    """Limits a lookahead to the tokens that the reply's share of the slots can verify at once."""

    inner: Lookahead
    slots: Callable[[], int]

    def max_draft_tokens(self) -> int:
        return min(self.inner.max_draft_tokens(), max(1, self.slots() - 1))

    def verify_length(self, draft: Draft) -> int:
        return self.inner.verify_length(draft)

    def accept_probabilities(self, draft: Draft) -> Sequence[float]:
        return self.inner.accept_probabilities(draft)

    def learn(self, round: RoundRecord) -> None:
        self.inner.learn(round)

    def __str__(self) -> str:
        return str(self.inner)
