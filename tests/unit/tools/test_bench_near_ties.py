"""How far a gap moves between passes, and what is a near-tie then."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from specollama.spec_decode.events import Text
from specollama.tools.bench.comparison import NEAR_TIE, CollectedReply
from specollama.tools.bench.near_ties import MIN_DRIFTS, GapDrift, gap_drifts, quantile
from tests.support.replies import told


def reply(*pieces: Text) -> CollectedReply:
    return CollectedReply(list(pieces))


def test_the_gap_of_the_same_two_tokens_is_compared_place_by_place() -> None:
    plain = reply(told("It", It=-0.1, The=-2.1), told(" is", is_=-0.5, was=-0.6))
    side = reply(told("It", 1, It=-0.1, The=-2.2), told(" is", 1, was=-0.58, is_=-0.52))

    assert list(gap_drifts(plain, side)) == [pytest.approx(0.1), pytest.approx(0.04)]


def test_nothing_is_learnt_where_the_texts_part_and_after() -> None:
    plain = reply(told("It", a=-0.1, b=-1.1), told(" is", a=-0.1, b=-1.1), told(" so", a=-0.1, b=-1.1))
    side = reply(told("It", 1, a=-0.1, b=-1.2), told(" was", 1, a=-9.0, b=-0.1), told(" so", 1, a=-9.0, b=-0.1))

    assert list(gap_drifts(plain, side)) == [pytest.approx(0.1)]


def test_a_place_that_no_round_scored_or_whose_second_token_is_not_shown_tells_nothing() -> None:
    plain = reply(told("It", a=-0.1, b=-1.1), told(" is", a=-0.1, b=-1.1), told(" so"))
    side = reply(told("It", 0, a=-0.1, b=-1.2), told(" is", 1, a=-0.1, c=-1.1), told(" so", 1, a=-0.1, b=-1.2))

    assert list(gap_drifts(plain, side)) == []


def test_texts_that_come_in_other_pieces_are_compared_where_the_pieces_agree() -> None:
    plain = reply(told("It", a=-0.1, b=-1.1), told(" is", a=-0.1, b=-1.1), told(" so", a=-0.1, b=-1.1))
    side = reply(told("It is", 1, a=-0.1, b=-5.0), told(" so", 2, a=-0.1, b=-1.4))

    assert list(gap_drifts(plain, side)) == [pytest.approx(0.3)]


def test_the_bound_is_the_constant_until_enough_was_seen_and_says_so() -> None:
    few, many = GapDrift([0.5] * (MIN_DRIFTS - 1)), GapDrift([0.001] * 2000 + [0.3, 0.4])

    assert few.bound == NEAR_TIE
    assert few.source == f"the constant for full precision: only {MIN_DRIFTS - 1} observations, {MIN_DRIFTS} are needed"
    assert many.bound == 0.001
    assert many.source == "2002 observations"
    assert many.as_object()["max"] == 0.4
    assert GapDrift([0.1] * 500 + [0.3]).bound == 0.3


@given(st.lists(st.floats(min_value=0, max_value=1), min_size=1), st.floats(min_value=0.01, max_value=1))
def test_a_quantile_is_the_smallest_value_that_the_share_does_not_exceed(values: list[float], share: float) -> None:
    found = quantile(values, share)
    within = sum(value <= found for value in values)
    below = sum(value < found for value in values)

    assert found in values
    assert within >= share * len(values) - 1e-9
    assert below < share * len(values)
