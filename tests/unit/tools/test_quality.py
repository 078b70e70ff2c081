"""Forecasts of acceptance, weighed against what became of them."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from specollama.spec_decode.metrics import Forecast, Stats
from specollama.spec_decode.types import Origin, OutputToken, Token, VerifyResult
from specollama.tools.doctor.forecast_quality import CalibrationBin, ForecastQuality, score_forecasts

FORECASTS = st.lists(st.builds(Forecast, st.floats(0, 1), st.booleans()), min_size=1)


def test_what_was_forecast_is_weighed_against_what_was_seen() -> None:
    found = score_forecasts([Forecast(0.5, True), Forecast(0.5, False), Forecast(1.0, True), Forecast(0.0, False)])
    bins = (CalibrationBin(0, 0.2, 1, 0, 0), CalibrationBin(0.4, 0.6, 2, 0.5, 0.5), CalibrationBin(0.99, 1, 1, 1, 1))
    assert found == ForecastQuality(4, 0.5, 0.5, 0.125, 0.25, bins)


def test_nothing_is_made_of_no_forecasts() -> None:
    assert score_forecasts([]) is None


@given(FORECASTS)
def test_each_forecast_is_in_one_bin(forecasts: list[Forecast]) -> None:
    found = score_forecasts(forecasts)
    assert found
    assert sum(each.tested for each in found.bins) == len(forecasts)
    assert all(each.above - 1e-9 <= each.predicted <= each.to + 1e-9 for each in found.bins)


@given(FORECASTS)
def test_who_always_says_the_acceptance_rate_scores_as_the_constant_does(forecasts: list[Forecast]) -> None:
    rate = sum(one.accepted for one in forecasts) / len(forecasts)
    found = score_forecasts([Forecast(rate, one.accepted) for one in forecasts])
    assert found
    assert found.brier == pytest.approx(found.constant)


def test_only_tested_tokens_are_forecasts() -> None:
    stats = Stats()
    emitted = (OutputToken(Token("a"), Origin.ACCEPTED), OutputToken(Token("b"), Origin.RECOVERED))
    stats.record(VerifyResult(emitted, drafted=4, tested=2, accepted=1), [0.75, 0.25, 0.5, 0.5])
    assert stats.forecasts == [Forecast(0.75, True), Forecast(0.25, False)]
    assert stats.predicted_rate == 0.5
    assert Stats().predicted_rate is None
