"""Calibration of acceptance forecasts: predicted against observed acceptance rate, by confidence bin."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise

from specollama.spec_decode.metrics import Forecast

BIN_EDGES = (0.0, 0.2, 0.4, 0.6, 0.8, 0.9, 0.95, 0.99, 1.0)
"""Where bins of forecasts end; narrower towards 1, where a little more makes drafts much longer."""


@dataclass(frozen=True, slots=True)
class CalibrationBin:
    """Tested tokens of which the forecast was above `above` and at most `to`; `predicted` and `seen` are shares."""

    above: float
    to: float
    tested: int
    predicted: float
    seen: float


@dataclass(frozen=True, slots=True)
class ForecastQuality:
    """Calibration of the forecasts of one category.

    `brier`: the mean square of what they were off (Brier 1950), 0 at best. `constant`: what it is of someone who knows
    only the acceptance rate and always says that; a forecast that isn't below tells nothing about single tokens.
    """

    tested: int
    acceptance_rate: float
    predicted_rate: float
    brier: float
    constant: float
    bins: tuple[CalibrationBin, ...]


def score_forecasts(forecasts: Sequence[Forecast]) -> ForecastQuality | None:
    """None where nothing was forecast."""
    if not forecasts:
        return None
    tested = len(forecasts)
    rate = sum(one.accepted for one in forecasts) / tested
    return ForecastQuality(
        tested=tested,
        acceptance_rate=rate,
        predicted_rate=sum(one.probability for one in forecasts) / tested,
        brier=sum((one.probability - one.accepted) ** 2 for one in forecasts) / tested,
        constant=rate * (1 - rate),
        bins=tuple(_bins(forecasts)),
    )


def _bins(forecasts: Sequence[Forecast]) -> Iterator[CalibrationBin]:
    """The bins that have forecasts; a forecast of 0 is in the first bin."""
    for above, to in pairwise(BIN_EDGES):
        inside = [one for one in forecasts if above < one.probability <= to or one.probability == above == 0]
        if inside:
            predicted = sum(one.probability for one in inside) / len(inside)
            yield CalibrationBin(above, to, len(inside), predicted, sum(one.accepted for one in inside) / len(inside))
