"""One target's lanes among the replies that want them at the same time: counted, never waited for."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

from specollama.spec_decode.lookahead import Lookahead
from specollama.spec_decode.types import Draft, Round

_FEWEST = 2  # lanes of a speculated reply: one row, and one drafted token


@dataclass(slots=True)
class Lanes:
    """`total`: requests that the target works on at once. A plain reply takes one of them."""

    total: int
    _speculated: int = 0
    _plain: int = 0

    @property
    def free(self) -> bool:
        """Whether one more reply can be speculated with a fair share for each."""
        return self._left // (self._speculated + 1) >= _FEWEST

    @property
    def share(self) -> int:
        """Lanes that each speculated reply may use now."""
        return max(_FEWEST, self._left // max(1, self._speculated))

    @property
    def _left(self) -> int:
        return self.total - self._plain

    @contextmanager
    def speculated(self) -> Iterator[None]:
        """For as long as a speculated reply runs."""
        self._speculated += 1
        try:
            yield
        finally:
            self._speculated -= 1

    @contextmanager
    def plain(self) -> Iterator[None]:
        """For as long as a reply runs that the target writes alone."""
        self._plain += 1
        try:
            yield
        finally:
            self._plain -= 1


@dataclass(frozen=True, slots=True)
class SharedLookahead:
    """A lookahead that never drafts more than the reply's share of the lanes can verify at once."""

    wanted: Lookahead
    lanes: Callable[[], int]

    def next(self) -> int:
        return min(self.wanted.next(), max(1, self.lanes() - 1))

    def send(self, draft: Draft) -> int:
        return self.wanted.send(draft)

    def forecast(self, draft: Draft) -> Sequence[float]:
        return self.wanted.forecast(draft)

    def learn(self, round: Round) -> None:
        self.wanted.learn(round)

    def __str__(self) -> str:
        return str(self.wanted)


DEFAULT_LANES = 8  # concurrent rows, where the configuration doesn't say how many the target works on at once
