"""Speed-ups and how sure they are: pure functions over pairs of rates.

A pair is (plain, side): the tokens per second of two replies to the same prompt, one right after the other. What
slows the machine for a while slows both, so pairs are never torn apart.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from math import exp, log
from random import Random
from statistics import fmean, median

Pair = tuple[float, float]

LEVEL = 0.95
FEWEST_TO_RESAMPLE = 6  # pairs; below that, no method without assumptions reaches LEVEL
RESAMPLES = 2000
_SEED = 1


@dataclass(frozen=True, slots=True)
class Interval:
    """Bounds of a factor, and the probability with which such bounds hold it."""

    low: float
    high: float
    confidence: float = LEVEL


def geometric_mean(factors: Sequence[float]) -> float:
    """Of one factor or more, all above 0."""
    return exp(fmean(log(factor) for factor in factors))


def ratio_of_medians(pairs: Sequence[Pair]) -> float:
    """The speed-up: the side's median rate over plain's."""
    return median(side for _, side in pairs) / median(plain for plain, _ in pairs)


def pairs_interval(pairs: Sequence[Pair]) -> Interval | None:
    """The interval of `ratio_of_medians`; None for a single pair, which says nothing of how rates vary.

    With fewer than six pairs: the smallest and the largest ratio of a pair. They hold the true median ratio with
    probability 1 - 2^(1-n), whatever the distribution (each pair falls on either side of it with probability 1/2):
    0.75 for three pairs, 0.94 for five; `confidence` says so. From six on: the percentile bootstrap over pairs, with a
    fixed seed.
    """
    if len(pairs) < 2:
        return None
    if len(pairs) < FEWEST_TO_RESAMPLE:
        ratios = [side / plain for plain, side in pairs]
        return Interval(min(ratios), max(ratios), 1 - 2 ** (1 - len(pairs)))
    return _percentiles(lambda random: ratio_of_medians(random.choices(pairs, k=len(pairs))))


def mean_interval(prompts: Sequence[Sequence[Pair]]) -> Interval | None:
    """The interval of the geometric mean of the prompts' speed-ups.

    Bootstrap in two stages with a fixed seed, prompts first and then the pairs of each: how it would be on other
    prompts of the kind, and not only on these. Somewhat too narrow where there are only a few. For one prompt: that of
    its pairs.
    """
    if len(prompts) < 2:
        return pairs_interval(prompts[0]) if prompts else None

    def again(random: Random) -> float:
        drawn = random.choices(prompts, k=len(prompts))
        return geometric_mean([ratio_of_medians(random.choices(pairs, k=len(pairs))) for pairs in drawn])

    return _percentiles(again)


def _percentiles(draw: Callable[[Random], float]) -> Interval:
    random = Random(_SEED)
    drawn = sorted(draw(random) for _ in range(RESAMPLES))
    cut = round(RESAMPLES * (1 - LEVEL) / 2)
    return Interval(drawn[cut], drawn[-1 - cut])
