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
from specollama.tools.bench.comparison import NEAR_TIE, CollectedReply, Comparison

QUANTILE = 0.999
MIN_DRIFTS = 100  # observations; fewer say little about the far end


@dataclass(slots=True)
class GapDrift:
    """The movements of the gap, in differences of log-probabilities, as they were seen."""

    drifts: list[float] = field(default_factory=list)

    def observe(self, plain: CollectedReply, side: CollectedReply) -> None:
        """Compare a reply of the side with one of plain that has its most probable tokens."""
        self.drifts.extend(gap_drifts(plain, side))

    @property
    def is_measured(self) -> bool:
        return len(self.drifts) >= MIN_DRIFTS

    @property
    def bound(self) -> float:
        """A gap below it is a near-tie: the 99.9th percentile by nearest rank; the constant if too little was seen."""
        return quantile(self.drifts, QUANTILE) if self.is_measured else NEAR_TIE

    @property
    def source(self) -> str:
        """Where the bound comes from, in words."""
        if self.is_measured:
            return f"{len(self.drifts)} observations"
        return f"the constant for full precision: only {len(self.drifts)} observations, {MIN_DRIFTS} are needed"

    def as_object(self) -> dict[str, float | int | str | None]:
        known = bool(self.drifts)
        return {
            "bound": round(self.bound, 5),
            "source": self.source,
            "observations": len(self.drifts),
            "median": round(median(self.drifts), 5) if known else None,
            "p95": round(quantile(self.drifts, 0.95), 5) if known else None,
            "max": round(max(self.drifts), 5) if known else None,
        }


def quantile(values: Sequence[float], share: float) -> float:
    """By nearest rank: the smallest value that at least this share of all don't exceed."""
    return sorted(values)[max(0, ceil(share * len(values)) - 1)]


def gap_drifts(plain: CollectedReply, side: CollectedReply) -> Iterator[float]:
    """How far the gap moved between plain's two best tokens, place by place, as long as the texts are the same.

    Only where a round of the side scored the place, and only before the texts part: a fault that makes them part must
    not widen the bound that it is judged by.
    """
    parted = Comparison(side, plain).first_difference
    shared = len(side.text) if parted is None else parted
    told = plain.piece_offsets
    for offset, piece in side.piece_offsets.items():
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
