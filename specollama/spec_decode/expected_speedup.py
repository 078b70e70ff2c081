"""What a pair can be expected to gain, by what passes cost, what drafting costs, and how often it is right.

A round drafts until a token seems too unlikely or the draft is long enough, and has it scored in one pass. The tokens'
chances are taken as independent of each other, so that a round can be added up exactly (Leviathan et al. 2023, section
3.3, where all chances are the same). Pure.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import product

from specollama.spec_decode.calibration import CONFIDENCE_BINS, MAX_DRAFT_TOKENS

_MIN_TESTED = 50.0  # tested tokens, below which counts say too little


@dataclass(frozen=True, slots=True)
class ConfidenceBin:
    """Drafted tokens of one kind: how sure the drafter is of them, how often they are accepted, and their share."""

    confidence: float
    probability: float
    share: float


@dataclass(frozen=True, slots=True)
class AcceptanceProfile:
    """How drafted tokens fare, if those before them were accepted. `tested`: tokens that this rests on; 0: assumed."""

    bins: tuple[ConfidenceBin, ...]
    tested: int = 0

    @property
    def rate(self) -> float:
        """Accepted over tested, of all that is drafted."""
        return sum(chance.share * chance.probability for chance in self.bins)

    @property
    def is_measured(self) -> bool:
        return self.tested > 0

    def at_least(self, threshold: float) -> tuple[float, float]:
        """The share of the tokens that are at least so sure, and how often those are accepted."""
        sure = [chance for chance in self.bins if chance.confidence >= threshold]
        share = sum(chance.share for chance in sure)
        return share, sum(chance.share * chance.probability for chance in sure) / share if share else 0.0


def constant_rate(rate: float, tested: int = 0) -> AcceptanceProfile:
    """Every token as likely as the other: what is known where the drafter doesn't say how sure it is."""
    return AcceptanceProfile((ConfidenceBin(1.0, rate, 1.0),), tested)


def from_counts(hits: Sequence[float], trials: Sequence[float]) -> AcceptanceProfile | None:
    """From a drafter's calibration (calibration.Calibration); None where it has seen too little."""
    total = sum(trials)
    if total < _MIN_TESTED:
        return None
    chances = tuple(
        ConfidenceBin(_bin_center(place), hit / trial, trial / total)
        for place, (hit, trial) in enumerate(zip(hits, trials, strict=True))
        if trial > 0
    )
    return AcceptanceProfile(chances, round(total))


def _bin_center(place: int) -> float:
    """The confidence in the middle of a bin of calibration.Calibration."""
    return float(1 - (1 - (place + 0.5) / CONFIDENCE_BINS) ** 2)


@dataclass(frozen=True, slots=True)
class BestRound:
    """The best that drafting can do: at most `lookahead` tokens a round, none after one below `threshold`.

    `speedup`: tokens a second over plain; 1 with a lookahead of 0, where drafting doesn't pay.
    """

    speedup: float = 1.0
    lookahead: int = 0
    threshold: float = 0.0


def expected_speedup(
    passes: Callable[[int], float],
    step: float,
    acceptance: AcceptanceProfile,
    lookahead: int,
    threshold: float = 0.0,
    overhead: float = 0.0,
) -> float:
    """Tokens a second over plain, of rounds of a given kind.

    `passes`: seconds of a pass of the target by its tokens; `step`: of a drafted token; `overhead`: of a round beside
    both. A token below the threshold was drafted, and isn't sent.
    """
    share, probability = acceptance.at_least(threshold)
    tokens, drafted, scoring = 1.0, 0.0, 0.0
    for length in range(1, lookahead + 1):
        tokens += (share * probability) ** length
        drafted += share ** (length - 1)
        scoring += (1 - share) * share ** (length - 1) * passes(length)  # stopped before the token of this place
    scoring += share**lookahead * passes(lookahead + 1)
    return tokens * passes(1) / (scoring + drafted * step + overhead)


def best_round(
    passes: Callable[[int], float],
    step: float,
    acceptance: AcceptanceProfile,
    *,
    most: int = MAX_DRAFT_TOKENS,
    overhead: float = 0.0,
    chooses: bool = True,
) -> BestRound:
    """The kind of round that gains most. `chooses`: drafting may stop where the drafter isn't sure."""
    thresholds = sorted({chance.confidence for chance in acceptance.bins}) if chooses else [0.0]
    rounds = (
        BestRound(expected_speedup(passes, step, acceptance, lookahead, threshold, overhead), lookahead, threshold)
        for lookahead, threshold in product(range(1, most + 1), thresholds)
    )
    return max((BestRound(), *rounds), key=lambda found: found.speedup)
