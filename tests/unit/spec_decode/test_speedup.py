"""The expected speed-up: small cases by hand, and against the planner's own decisions on a virtual clock."""

from __future__ import annotations

from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from specollama.spec_decode.calibration import CONFIDENCE_BINS, Calibration
from specollama.spec_decode.cost_curve import CostCurve
from specollama.spec_decode.expected_speedup import (
    AcceptanceProfile,
    BestRound,
    ConfidenceBin,
    best_round,
    constant_rate,
    expected_speedup,
    from_counts,
)
from tests.support.simulated import Fixed, Machine

BOUND_BY_MEMORY = Machine(
    {1: 0.075, 2: 0.102, 3: 0.114, 4: 0.134, 6: 0.148, 8: 0.169, 12: 0.204, 16: 0.246, 32: 0.42}, 0.019
)
MACHINES = {
    "bound by memory": BOUND_BY_MEMORY,
    "a fast processor": Machine({1: 0.03, 8: 0.032, 16: 0.036, 32: 0.05}, 0.004),
    "bound by arithmetic": Machine({1: 0.05, 2: 0.09, 4: 0.17, 8: 0.33, 16: 0.65, 32: 1.3}, 0.005),
}
TOKENS = 3_000


def test_a_draft_that_costs_nothing_and_is_always_right_brings_all_its_tokens() -> None:
    assert expected_speedup(lambda tokens: 1.0, 0.0, constant_rate(1.0), 4) == 5


def test_a_round_by_hand() -> None:
    """Two drafted at half a step each, a pass over three that costs 1.5: 1 + 0.8 + 0.64 tokens in 2.5."""
    passes = {1: 1.0, 2: 1.25, 3: 1.5}
    assert expected_speedup(passes.__getitem__, 0.5, constant_rate(0.8), 2) == pytest.approx(2.44 / 2.5)
    assert expected_speedup(passes.__getitem__, 0.5, constant_rate(0.8), 2, overhead=0.5) == pytest.approx(2.44 / 3.0)


def test_a_token_that_isnt_sure_is_drafted_but_not_sent() -> None:
    """Half of the tokens are sure and right: one draft, then with a half a pass over two, else over one."""
    half = AcceptanceProfile((ConfidenceBin(0.9, 1.0, 0.5), ConfidenceBin(0.1, 0.0, 0.5)))
    assert half.rate == 0.5
    assert expected_speedup({1: 1.0, 2: 1.2}.__getitem__, 0.1, half, 1, 0.5) == pytest.approx(1.5 / (0.1 + 0.5 + 0.6))


def test_where_drafting_doesnt_pay_nothing_is_to_be_drafted() -> None:
    assert best_round(lambda tokens: float(tokens), 0.1, constant_rate(0.9)) == BestRound(1.0, 0, 0.0)


def test_a_drafter_that_knows_when_it_is_sure_gains_more_than_one_that_doesnt() -> None:
    known = AcceptanceProfile((ConfidenceBin(0.9, 0.98, 0.6), ConfidenceBin(0.3, 0.3, 0.4)))
    curve = CostCurve(dict(BOUND_BY_MEMORY.passes))
    knowing, blind = best_round(curve, 0.019, known), best_round(curve, 0.019, constant_rate(known.rate))
    assert knowing.threshold == 0.9
    assert knowing.speedup > 1.1 * blind.speedup


@pytest.mark.parametrize("rate", [0.5, 0.7, 0.9, 0.95])
@pytest.mark.parametrize("machine", MACHINES)
def test_it_is_what_the_planner_reaches(machine: str, rate: float) -> None:
    simulated = MACHINES[machine]
    plain = simulated.rate(Fixed(0), lambda place: rate, TOKENS)
    reached = simulated.rate(simulated.planner(), lambda place: rate, TOKENS) / plain
    promised = best_round(CostCurve(dict(simulated.passes)), simulated.step, constant_rate(rate))
    assert promised.speedup == pytest.approx(reached, rel=0.05)


@pytest.mark.parametrize("machine", MACHINES)
def test_it_is_what_the_planner_reaches_with_tokens_of_several_kinds(machine: str) -> None:
    simulated, random = MACHINES[machine], Random(7)
    kinds = (
        ConfidenceBin(0.99, 0.99, 0.5),
        ConfidenceBin(0.9, 0.9, 0.2),
        ConfidenceBin(0.6, 0.6, 0.15),
        ConfidenceBin(0.2, 0.2, 0.15),
    )
    drawn = random.choices([kind.probability for kind in kinds], [kind.share for kind in kinds], k=TOKENS + 100)
    plain = simulated.rate(Fixed(0), drawn.__getitem__, TOKENS)
    reached = simulated.rate(simulated.planner(), drawn.__getitem__, TOKENS) / plain
    promised = best_round(CostCurve(dict(simulated.passes)), simulated.step, AcceptanceProfile(kinds))
    assert promised.speedup == pytest.approx(reached, rel=0.1)


def test_a_calibration_tells_how_drafts_fare() -> None:
    calibration, random = Calibration(), Random(3)
    for _ in range(400):
        sure = random.random() < 0.5
        calibration.observe(0.95 if sure else 0.3, random.random() < (0.9 if sure else 0.2))
    known = from_counts(calibration.hits, calibration.trials)
    assert known
    assert known.tested == 400
    assert known.rate == pytest.approx(0.55, abs=0.06)
    assert known.at_least(0.6)[1] == pytest.approx(0.9, abs=0.06)
    assert from_counts([10.0] + [0.0] * (CONFIDENCE_BINS - 1), [20.0] + [0.0] * (CONFIDENCE_BINS - 1)) is None, (
        "20 tokens tell next to nothing"
    )


@given(st.floats(0, 1), st.floats(0.0, 2.0), st.integers(1, 8))
def test_nothing_gains_more_than_all_of_its_tokens(rate: float, step: float, lookahead: int) -> None:
    curve = CostCurve({1: 1.0, 2: 1.2, 16: 2.0})
    assert 0 < expected_speedup(curve, step, constant_rate(rate), lookahead) <= lookahead + 1
    assert best_round(curve, step, constant_rate(rate), most=lookahead).speedup >= 1
