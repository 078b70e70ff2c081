"""Pearson's chi-square test, for what is drawn many times."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Hashable, Mapping

_LEAST_EXPECTED = 5.0  # draws: rarer outcomes are counted together, or the test's distribution is off


def p_value(observed: Counter[Hashable], expected: Mapping[Hashable, float]) -> float:
    """How likely counts at least this far from `expected` (probabilities) are, if they were drawn from it.

    0 when something was drawn that can't be.
    """
    if any(expected.get(outcome, 0) <= 0 for outcome in observed):
        return 0.0
    draws = observed.total()
    cells, rare = list[tuple[float, int]](), (0.0, 0)
    for outcome, probability in expected.items():
        cell = (probability * draws, observed[outcome])
        if cell[0] < _LEAST_EXPECTED:
            rare = (rare[0] + cell[0], rare[1] + cell[1])
        else:
            cells.append(cell)
    if rare[0] >= _LEAST_EXPECTED or (rare[0] > 0 and not cells):
        cells.append(rare)
    elif rare[0] > 0:
        least = min(range(len(cells)), key=lambda place: cells[place][0])
        cells[least] = (cells[least][0] + rare[0], cells[least][1] + rare[1])
    statistic = sum((seen - mean) ** 2 / mean for mean, seen in cells)
    return upper_tail(statistic, len(cells) - 1)


def upper_tail(statistic: float, freedom: int) -> float:
    """The probability that a chi-square variable with `freedom` degrees of freedom exceeds `statistic`."""
    if freedom <= 0 or statistic <= 0:
        return 1.0
    shape, x = freedom / 2, statistic / 2
    scale = math.exp(shape * math.log(x) - x - math.lgamma(shape))
    return scale * _fraction(shape, x) if x > shape + 1 else 1 - scale * _series(shape, x)


def _series(shape: float, x: float) -> float:
    """The lower incomplete gamma function, without its scale (Abramowitz and Stegun 6.5.29)."""
    term = total = 1 / shape
    step = shape
    while term > total * 1e-16:
        step += 1
        term *= x / step
        total += term
    return total


def _fraction(shape: float, x: float) -> float:
    """The upper incomplete gamma function, without its scale (6.5.31), by Lentz's method."""
    b = x + 1 - shape
    c, d = 1e300, 1 / b
    value = d
    for n in range(1, 10_000):
        a, b = -n * (n - shape), b + 2
        d = 1 / (a * d + b)
        c = b + a / c
        value *= c * d
        if abs(c * d - 1) < 1e-15:
            break
    return value
