"""Speed-ups and their intervals: exact cases, and what has to hold for any rates."""

from __future__ import annotations

from math import isclose
from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from specollama.tools.bench.intervals import Interval, geometric_mean, mean_interval, pairs_interval, ratio_of_medians

RATES = st.floats(min_value=0.5, max_value=500)
PAIRS = st.lists(st.tuples(RATES, RATES), min_size=2, max_size=8)


def test_twice_as_fast_and_half_as_fast_make_no_gain() -> None:
    assert geometric_mean([2, 0.5]) == pytest.approx(1)
    assert geometric_mean([2, 8]) == pytest.approx(4)


def test_the_speedup_is_of_medians_and_one_stalled_reply_changes_nothing() -> None:
    assert ratio_of_medians([(1, 2), (2, 6), (4, 8)]) == 3
    assert ratio_of_medians([(2, 6), (2, 6), (0.01, 6), (2, 0.01), (2, 6)]) == 3


def test_a_single_pair_says_nothing_of_how_rates_vary() -> None:
    assert pairs_interval([(10, 15)]) is None


@pytest.mark.parametrize(("count", "confidence"), [(2, 0.5), (3, 0.75), (4, 0.875), (5, 0.9375)])
def test_few_pairs_give_their_extremes_and_say_how_little_that_holds(count: int, confidence: float) -> None:
    pairs = [(10, 20), (10, 15), (10, 30), (10, 18), (10, 22)][:count]
    assert pairs_interval(pairs) == Interval(1.5, max(side for _, side in pairs) / 10, confidence)


def test_the_extremes_of_five_pairs_hold_the_true_ratio_as_often_as_they_say() -> None:
    random, trials, true = Random(7), 4000, 1.5
    held = 0
    for _ in range(trials):
        noisy = [(10 * random.lognormvariate(0, 0.2), 15 * random.lognormvariate(0, 0.2)) for _ in range(5)]
        found = pairs_interval(noisy)
        held += found is not None and found.low <= true <= found.high
    assert held / trials == pytest.approx(0.9375, abs=0.015)


def test_from_six_pairs_on_the_interval_is_of_95_percent_and_narrower_than_the_extremes() -> None:
    random = Random(3)
    pairs = [(10.0, 15 * random.lognormvariate(0, 0.2)) for _ in range(20)]
    found = pairs_interval(pairs)
    ratios = [side / plain for plain, side in pairs]

    assert found is not None
    assert found.confidence == 0.95
    assert min(ratios) < found.low < ratio_of_medians(pairs) < found.high < max(ratios)


@given(PAIRS)
def test_the_interval_lies_within_the_pairs_ratios_and_is_the_same_each_time(pairs: list[tuple[float, float]]) -> None:
    found, ratios = pairs_interval(pairs), [side / plain for plain, side in pairs]

    assert found is not None
    assert min(ratios) * (1 - 1e-9) <= found.low <= found.high <= max(ratios) * (1 + 1e-9)
    assert min(ratios) * (1 - 1e-9) <= ratio_of_medians(pairs) <= max(ratios) * (1 + 1e-9)
    assert found == pairs_interval(pairs)


@given(PAIRS, st.floats(min_value=0.1, max_value=10))
def test_a_faster_machine_changes_no_factor(pairs: list[tuple[float, float]], speed: float) -> None:
    there = [(plain * speed, side * speed) for plain, side in pairs]
    found, again = pairs_interval(pairs), pairs_interval(there)

    assert isclose(ratio_of_medians(pairs), ratio_of_medians(there))
    assert found is not None
    assert again is not None
    assert isclose(found.low, again.low)
    assert isclose(found.high, again.high)


def test_the_interval_of_one_prompt_is_that_of_its_pairs() -> None:
    pairs = [(10, 20), (10, 15), (10, 30)]
    assert mean_interval([pairs]) == pairs_interval(pairs)
    assert mean_interval([]) is None


def test_prompts_that_are_all_alike_leave_no_doubt() -> None:
    found = mean_interval([[(10, 15)]] * 4)
    assert found is not None
    assert (found.low, found.high) == (pytest.approx(1.5), pytest.approx(1.5))


@given(st.lists(PAIRS, min_size=2, max_size=3))
def test_prompts_that_differ_widen_the_interval_of_their_mean_up_to_their_extremes(
    prompts: list[list[tuple[float, float]]],
) -> None:
    found = mean_interval(prompts)
    ratios = [side / plain for pairs in prompts for plain, side in pairs]

    assert found is not None
    assert min(ratios) * (1 - 1e-9) <= found.low <= found.high <= max(ratios) * (1 + 1e-9)
