"""How near a tie has to be for another batch to decide it otherwise: measured for a target, a machine and a route.

Engines aren't bit-stable: a token computed in a pass over several comes out a little different than in a pass over
one. What matters is how far the gap between the two best tokens moves. It is seen wherever both sides say their most
probable tokens at the same place after the same text.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from math import ceil
from statistics import median

from specollama.spec_decode.events import Text
from specollama.tools.bench.comparison import NEAR_TIE, Comparison, Reply

QUANTILE = 0.999
ENOUGH = 100  # observations; fewer say little about the far end


@dataclass(slots=True)
class Movements:
    """The movements of the gap, in differences of log-probabilities, as they were seen."""

    seen: list[float] = field(default_factory=list)

    def learn(self, plain: Reply, side: Reply) -> None:
        """Look at a reply of the side beside one of plain that told its most probable tokens."""
        self.seen.extend(movements(plain, side))

    @property
    def measured(self) -> bool:
        return len(self.seen) >= ENOUGH

    @property
    def bound(self) -> float:
        """A gap below it is a near-tie: the 99.9th percentile by nearest rank; the constant if too little was seen."""
        return quantile(self.seen, QUANTILE) if self.measured else NEAR_TIE

    @property
    def source(self) -> str:
        """Where the bound comes from, in words."""
        if self.measured:
            return f"{len(self.seen)} observations"
        return f"the constant for full precision: only {len(self.seen)} observations, {ENOUGH} are needed"

    def as_object(self) -> dict[str, float | int | str | None]:
        known = bool(self.seen)
        return {
            "bound": round(self.bound, 5),
            "source": self.source,
            "observations": len(self.seen),
            "median": round(median(self.seen), 5) if known else None,
            "p95": round(quantile(self.seen, 0.95), 5) if known else None,
            "max": round(max(self.seen), 5) if known else None,
        }


def quantile(values: Sequence[float], share: float) -> float:
    """By nearest rank: the smallest value that at least this share of all don't exceed."""
    return sorted(values)[max(0, ceil(share * len(values)) - 1)]


def movements(plain: Reply, side: Reply) -> Iterator[float]:
    """How far the gap moved between plain's two best tokens, place by place, as long as the texts are the same.

    Only where a round of the side scored the place, and only before the texts part: a fault that makes them part must
    not widen the bound that it is judged by.
    """
    parted = Comparison(side, plain).first_difference
    shared = len(side.text) if parted is None else parted
    told = plain.places
    for offset, piece in side.places.items():
        end = offset + len(piece.text)
        other = told.get(offset)
        if end > shared or other is None or other.text != piece.text or piece.round == 0:
            continue
        if (moved := _movement(other, piece)) is not None:
            yield moved


def _movement(plain: Text, side: Text) -> float | None:
    best = [(token.text, token.logprob) for token in plain.top[:2] if token.logprob is not None and token.text]
    if len(best) < 2 or best[0][0] == best[1][0]:
        return None  # tokens without a text of their own can't be told from each other
    theirs = _by_text(side)
    (first, first_before), (second, second_before) = best
    if first not in theirs or second not in theirs:
        return None
    return abs((first_before - second_before) - (theirs[first] - theirs[second]))


def _by_text(piece: Text) -> Mapping[str, float]:
    """Of tokens with the same text (one of them a fragment of a character, say), the most probable."""
    known = [(token.text, token.logprob) for token in piece.top if token.logprob is not None]
    return dict(reversed(known))
