"""The tests' own statistics, against values from tables and by simulation of the simplest case."""

from __future__ import annotations

from collections import Counter

import pytest

from tests.support.chi_square import p_value, upper_tail


@pytest.mark.parametrize(
    ("statistic", "freedom", "tail"),
    [
        (3.841459, 1, 0.05),
        (10.827566, 1, 0.001),
        (5.991465, 2, 0.05),
        (13.815511, 2, 0.001),
        (18.307038, 10, 0.05),
        (29.588298, 10, 0.001),
        (149.449253, 100, 0.001),
        (61.922, 100, 0.999),
    ],
)
def test_the_upper_tail_is_that_of_the_printed_tables(statistic: float, freedom: int, tail: float) -> None:
    assert upper_tail(statistic, freedom) == pytest.approx(tail, rel=1e-3)


def test_the_tail_of_two_degrees_of_freedom_is_an_exponential_however_far_out() -> None:
    for statistic in (0.1, 1.0, 4.0, 30.0, 100.0):
        assert upper_tail(statistic, 2) == pytest.approx(2.718281828459045 ** (-statistic / 2), rel=1e-9)


def test_counts_that_are_just_as_expected_are_not_suspicious() -> None:
    assert p_value(Counter(a=500, b=300, c=200), {"a": 0.5, "b": 0.3, "c": 0.2}) == 1


def test_a_shift_of_three_in_a_hundred_is_found_in_ten_thousand_draws() -> None:
    assert p_value(Counter(a=5300, b=4700), {"a": 0.5, "b": 0.5}) < 1e-6


def test_a_shift_within_chance_is_not_found() -> None:
    assert p_value(Counter(a=5050, b=4950), {"a": 0.5, "b": 0.5}) == pytest.approx(0.3173, abs=1e-3)


def test_an_outcome_that_is_impossible_settles_it() -> None:
    assert p_value(Counter(a=999, z=1), {"a": 1.0}) == 0


def test_rare_outcomes_are_counted_together() -> None:
    expected = {"a": 0.99, **{f"rare{n}": 0.0001 for n in range(100)}}
    assert p_value(Counter({"a": 990, "rare7": 10}), expected) == pytest.approx(1)
    assert p_value(Counter({"a": 950, "rare7": 50}), expected) < 1e-6


def test_outcomes_too_rare_even_together_join_the_next_rarest() -> None:
    assert p_value(Counter(a=50, b=49, c=1), {"a": 0.5, "b": 0.49, "c": 0.01}) == pytest.approx(1)


def test_all_outcomes_rare_leaves_nothing_to_compare() -> None:
    assert p_value(Counter(a=1), {"a": 0.5, "b": 0.5}) == 1
