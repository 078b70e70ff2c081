"""Expected speedup of a pair, from the costs of forward passes and drafting and from the acceptance rate.

A round drafts up to the lookahead, or until the confidence falls below a threshold, and verifies in one forward pass.
Acceptance is modelled as independent between positions, so that the expectation is exact (Leviathan et al. 2023,
section 3.3, extended to rates that vary with confidence). Pure: no I/O.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import product

from specollama.spec_decode.calibration import CONFIDENCE_BINS, MAX_DRAFT_TOKENS

_MIN_TESTED = 50.0  # minimum number of tested tokens for a measured profile


@dataclass(frozen=True, slots=True)
class ConfidenceBin:
    """Drafted tokens of one confidence: their acceptance probability, and their share of all drafted tokens."""

    confidence: float
    probability: float
    share: float


@dataclass(frozen=True, slots=True)
class AcceptanceProfile:
    """Acceptance by confidence bin. `tested`: tokens in the measurement; 0: the profile is an assumption."""

    bins: tuple[ConfidenceBin, ...]
    tested: int = 0

    @property
    def rate(self) -> float:
        """Acceptance rate over all drafted tokens."""
        return sum(chance.share * chance.probability for chance in self.bins)

    @property
    def is_measured(self) -> bool:
        return self.tested > 0

    def at_least(self, threshold: float) -> tuple[float, float]:
        """Share of the tokens with at least this confidence, and their acceptance rate."""
        sure = [chance for chance in self.bins if chance.confidence >= threshold]
        share = sum(chance.share for chance in sure)
        return share, sum(chance.share * chance.probability for chance in sure) / share if share else 0.0


def constant_rate(rate: float, tested: int = 0) -> AcceptanceProfile:
    """Profile with the same acceptance rate for every token, for a drafter without confidence values."""
    return AcceptanceProfile((ConfidenceBin(1.0, rate, 1.0),), tested)


def from_counts(hits: Sequence[float], trials: Sequence[float]) -> AcceptanceProfile | None:
    """Profile from a drafter's calibration counts (calibration.Calibration); None if there are too few."""
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
    """The best round: at most `lookahead` drafted tokens, and a stop at the first confidence below `threshold`.

    `speedup`: decoding rate over the plain rate; 1 with a lookahead of 0 if drafting doesn't pay.
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
    """Decoding rate over the plain rate, for rounds with this lookahead and confidence threshold.

    `passes`: seconds of a target forward pass by its tokens. `step`: seconds per drafted token. `overhead`: other
    seconds per round. The first token below the threshold costs a draft step, but is not verified.
    """
    share, probability = acceptance.at_least(threshold)
    tokens, drafted, scoring = 1.0, 0.0, 0.0
    for length in range(1, lookahead + 1):
        tokens += (share * probability) ** length
        drafted += share ** (length - 1)
        scoring += (1 - share) * share ** (length - 1) * passes(length)  # the draft stopped before this position
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
    """Return the round with the highest speedup. `chooses`: drafting may stop at a low confidence."""
    thresholds = sorted({chance.confidence for chance in acceptance.bins}) if chooses else [0.0]
    rounds = (
        BestRound(expected_speedup(passes, step, acceptance, lookahead, threshold, overhead), lookahead, threshold)
        for lookahead, threshold in product(range(1, most + 1), thresholds)
    )
    return max((BestRound(), *rounds), key=lambda found: found.speedup)
