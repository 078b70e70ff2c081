"""Whether and how much to draft: on a virtual clock, against the best fixed length found by search."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from specollama.spec_decode.calibration import (
    MAX_DRAFT_TOKENS,
    PROMPT_LOOKUP,
    Calibration,
    DrafterStats,
    acceptance_outcomes,
)
from specollama.spec_decode.cost_curve import CostCurve
from specollama.spec_decode.planner import Planner
from specollama.spec_decode.reply_length import ReplyLengths
from specollama.spec_decode.types import AcceptanceMethod, Draft, Origin, OutputToken, RoundRecord, Token, VerifyResult
from tests.support.simulated import RIGHT, WRONG, Fixed, Machine, rate_of_several

MACHINES = {
    "bound by memory": Machine(
        {1: 0.075, 2: 0.102, 3: 0.114, 4: 0.134, 6: 0.148, 8: 0.169, 12: 0.204, 16: 0.246, 32: 0.42}, 0.019
    ),
    "a fast processor": Machine({1: 0.03, 8: 0.032, 16: 0.036, 32: 0.05}, 0.004),
    "bound by arithmetic": Machine({1: 0.05, 2: 0.09, 4: 0.17, 8: 0.33, 16: 0.65, 32: 1.3}, 0.005),
}
ACCEPTANCES = (0.5, 0.6, 0.7, 0.8, 0.9, 0.95, 0.98)
TOKENS = 3_000
STAGES = 6_000  # tokens of a reply of several stages


@pytest.mark.parametrize("acceptance", ACCEPTANCES)
@pytest.mark.parametrize("machine", MACHINES)
def test_it_is_as_fast_as_the_best_fixed_length(machine: str, acceptance: float) -> None:
    simulated = MACHINES[machine]
    best = max(simulated.rate_of_fixed(count, acceptance) for count in (*range(13), 16, 24, 32))
    assert simulated.rate(simulated.planner(), lambda place: acceptance, TOKENS) >= 0.97 * best


def test_it_follows_a_reply_that_changes() -> None:
    """Code, then prose, and so forth: no fixed length is as fast."""
    simulated = MACHINES["bound by memory"]

    def accepted(place: int) -> float:
        return 0.97 if place // 60 % 2 else 0.4

    best = max(simulated.rate(Fixed(count), accepted, STAGES) for count in range(13))
    assert simulated.rate(simulated.planner(), accepted, STAGES) > 1.05 * best


def test_of_several_models_the_one_drafts_that_pays_in_the_present_stage_of_the_reply() -> None:
    simulated = MACHINES["bound by memory"]
    accepted = {"code": lambda place: 0.97 if place // 300 % 2 else 0.3, "prose": lambda place: 0.85}
    alone = {name: simulated.rate(simulated.planner(), accepted[name], STAGES) for name in accepted}
    best = simulated.rate(simulated.planner(), lambda place: max(each(place) for each in accepted.values()), STAGES)
    chosen = rate_of_several(simulated, accepted, STAGES)
    assert chosen > 1.03 * max(alone.values())
    assert chosen > 0.87 * best  # the bound on what may be lost makes it slower to change


def test_a_model_that_never_pays_costs_little_beside_one_that_does() -> None:
    simulated = MACHINES["bound by memory"]
    alone = simulated.rate(simulated.planner(), lambda place: 0.9, STAGES)
    assert rate_of_several(simulated, {"good": lambda place: 0.9, "bad": lambda place: 0.1}, STAGES) > 0.97 * alone


def test_drafting_that_never_pays_costs_next_to_nothing() -> None:
    simulated = MACHINES["bound by arithmetic"]
    plain = simulated.rate_of_fixed(0, 0.3)
    assert simulated.rate(simulated.planner(), lambda place: 0.3, TOKENS) > 0.985 * plain


def planner(rule: AcceptanceMethod = AcceptanceMethod.GREEDY, **given: object) -> Planner:
    return replace(MACHINES["bound by memory"].planner(rule), **given)  # type: ignore[arg-type]


def draft(*confidence: float, source: str = "model") -> Draft:
    tokens = tuple(Token(f"t{place}") for place in range(len(confidence)))
    return Draft(tokens, (None,) * len(tokens), source, confidence)


def test_the_first_token_is_not_delayed_by_a_draft() -> None:
    chosen = planner()
    assert chosen.max_draft_tokens() == 0
    chosen.learn(
        RoundRecord(
            Draft(), VerifyResult((OutputToken(Token("a"), Origin.PLAIN),)), score_seconds=0.08, prefilled_tokens=5
        )
    )
    assert chosen.max_draft_tokens() == MAX_DRAFT_TOKENS


def test_an_unlikely_end_of_a_draft_is_not_sent() -> None:
    assert planner().verify_length(draft(0.99, 0.99, 0.99, 0.99, 0.05, 0.05)) == 4
    assert planner().verify_length(draft(0.05)) == 0


def test_by_rejection_all_that_was_drafted_is_sent() -> None:
    """What is left out may not depend on what was drafted after it."""
    assert planner(AcceptanceMethod.REJECTION).verify_length(draft(0.99, 0.05)) == 2


def test_after_an_unlikely_token_nothing_more_is_drafted() -> None:
    chosen = planner(drafters={"model": DrafterStats(0.019, calibration=known(0.9))})
    assert chosen.should_extend(draft(0.99, 0.98))
    assert not chosen.should_extend(draft(0.99, 0.02))
    assert not chosen.should_extend(draft(*[0.99] * MAX_DRAFT_TOKENS))


def test_a_forced_length_is_drafted_and_sent_whatever_it_brings() -> None:
    forced = planner(fixed_lengths=(3,))
    assert str(forced) == "3"
    assert forced.max_draft_tokens() == 3
    assert [forced.should_extend(draft(*[0.01] * count)) for count in (1, 2, 3)] == [True, True, False]
    assert forced.verify_length(draft(0.01, 0.01, 0.01)) == 3
    assert forced.pick_drafter({"model": 10_000}) == "model"


def test_forced_lengths_go_by_round() -> None:
    forced = planner(fixed_lengths=(4, 2))
    assert (str(forced), forced.max_draft_tokens()) == ("4, 2, ...", 4)
    assert forced.should_extend(draft(0.1, 0.1))
    for _ in range(2):
        forced.learn(RoundRecord(draft(0.1), VerifyResult((OutputToken(RIGHT, Origin.ACCEPTED),), 1, 1, 1)))
        assert forced.max_draft_tokens() == 2
        assert not forced.should_extend(draft(0.1, 0.1))


def known(acceptance: float) -> Calibration:
    calibration = Calibration()
    for place in range(100):
        calibration.observe(0.9, place < 100 * acceptance)
    return calibration


def begun(**given: object) -> Planner:
    """Of a reply whose first token is written."""
    chosen = planner(**given)
    chosen.learn(
        RoundRecord(
            Draft(), VerifyResult((OutputToken(Token("a"), Origin.PLAIN),)), score_seconds=0.08, prefilled_tokens=5
        )
    )
    return chosen


def plain_rounds_before_the_first_draft(pass_seconds: float) -> int:
    chosen = begun(drafters={"model": DrafterStats(0.019)})
    plain = VerifyResult((OutputToken(Token("a"), Origin.PLAIN),))
    for rounds in range(100):
        if chosen.pick_drafter({"model": 1}):
            return rounds
        chosen.learn(RoundRecord(Draft(), plain, score_seconds=pass_seconds))
    return 100


def test_passes_slower_than_those_measured_do_not_hold_the_first_draft_back() -> None:
    """They cost a plain reply just as much: only what drafts take counts as lost."""
    measured = MACHINES["bound by memory"].passes[1]
    assert plain_rounds_before_the_first_draft(1.5 * measured) <= plain_rounds_before_the_first_draft(measured)


def test_a_new_drafter_is_tried_within_the_larger_budget_of_a_first_reply() -> None:
    assert plain_rounds_before_the_first_draft(MACHINES["bound by memory"].passes[1]) <= 12


def test_after_a_costly_rejected_draft_a_new_drafter_waits_until_plain_rounds_make_up_for_it() -> None:
    chosen = begun(drafters={"model": DrafterStats(0.019)})
    plain = VerifyResult((OutputToken(Token("a"), Origin.PLAIN),))
    recovered = VerifyResult((OutputToken(Token("a"), Origin.RECOVERED),), drafted=1, tested=1)
    chosen.learn(RoundRecord(draft(0.9), recovered, draft_seconds=1.0, score_seconds=0.1))
    for _ in range(15):  # of 75 ms: a fifteenth of that may be lost
        assert chosen.pick_drafter({"model": 1}) is None
        chosen.learn(RoundRecord(Draft(), plain, score_seconds=0.075))


def test_a_new_drafter_does_not_read_a_long_text_within_a_small_budget() -> None:
    chosen = begun(drafters={"model": DrafterStats(0.019, prefill_seconds_per_token=0.004)})
    plain = VerifyResult((OutputToken(Token("a"), Origin.PLAIN),))
    for _ in range(50):
        assert chosen.pick_drafter({"model": 5_000}) is None
        chosen.learn(RoundRecord(Draft(), plain, score_seconds=0.075))


def test_a_long_text_is_not_read_where_only_a_few_replies_are_long_enough_to_repay_it() -> None:
    lengths = ReplyLengths()
    for tokens in [10] * 16 + [4_000] * 4:
        for before in range(tokens):
            lengths.observe_progress(before, before + 1)
        lengths.observe_end(tokens)
    sources = {"model": DrafterStats(0.019, prefill_seconds_per_token=0.004, calibration=known(0.9))}
    chosen = begun(drafters=sources, reply_lengths=lengths)
    assert lengths.expected_tokens(1, None) > 400
    assert chosen.pick_drafter({"model": 1_000}) is None


def test_a_text_that_would_take_too_long_to_read_is_not_read_for_a_short_reply() -> None:
    sources = {"model": DrafterStats(0.019, prefill_seconds_per_token=0.004, calibration=known(0.9))}
    assert begun(drafters=sources, token_limit=40).pick_drafter({"model": 5_000}) is None
    assert begun(drafters=sources).pick_drafter({"model": 2}) == "model"


def test_a_model_drafts_only_where_it_is_hoped_to_bring_more_than_what_was_found() -> None:
    sources = {"model": DrafterStats(0.019, calibration=known(0.9))}
    assert begun(drafters=sources).pick_drafter({"model": 1}, instead=0.1) == "model"
    assert begun(drafters=sources).pick_drafter({"model": 1}, instead=20.0) is None
    assert begun(drafters=sources).pick_drafter({"model": 1}, instead=3.0) is None


def test_what_was_not_sent_is_learnt_from_as_well() -> None:
    emitted = (OutputToken(Token("t0"), Origin.ACCEPTED), OutputToken(Token("t1"), Origin.BONUS))
    assert acceptance_outcomes(draft(0.9, 0.8, 0.7), VerifyResult(emitted, drafted=1)) == [(0.9, True), (0.8, True)]
    wrong = (OutputToken(Token("t0"), Origin.ACCEPTED), OutputToken(WRONG, Origin.RECOVERED))
    assert acceptance_outcomes(draft(0.9, 0.8, 0.7), VerifyResult(wrong, drafted=3)) == [(0.9, True), (0.8, False)]
    assert acceptance_outcomes(draft(0.9), VerifyResult((OutputToken(RIGHT, Origin.PLAIN),))) == [(0.9, False)]


def test_lookup_that_was_not_taken_is_judged_all_the_same() -> None:
    chosen = planner(drafters={PROMPT_LOOKUP: DrafterStats(), "model": DrafterStats(0.019)})
    before = sum(chosen.drafters[PROMPT_LOOKUP].joint_accept_probs([0.5]))
    for _ in range(20):
        chosen.observe_unused(draft(0.5, source=PROMPT_LOOKUP), VerifyResult((OutputToken(WRONG, Origin.PLAIN),)))
    assert sum(chosen.drafters[PROMPT_LOOKUP].joint_accept_probs([0.5])) < before / 2


@given(st.lists(st.booleans(), max_size=300), st.floats(0, 1))
def test_a_calibrated_probability_stays_one(outcomes: list[bool], confidence: float) -> None:
    calibration = Calibration()
    for outcome in outcomes:
        calibration.observe(confidence, outcome)
    assert 0 <= calibration.probability(confidence) <= 1
    if len(outcomes) > 100:
        assert calibration.probability(confidence) == pytest.approx(sum(outcomes) / len(outcomes), abs=0.05)


def test_a_curve_is_straight_between_its_points_and_goes_on_beyond() -> None:
    curve = CostCurve({1: 10.0, 2: 20.0, 4: 24.0})
    assert [curve(size) for size in (1, 2, 3, 4, 6)] == [10, 20, 22, 24, 28]
    assert CostCurve({1: 10.0})(8) == 10


def test_a_machine_that_is_busy_makes_all_of_the_curve_dearer() -> None:
    curve = CostCurve({1: 10.0, 8: 20.0})
    for _ in range(30):
        curve.observe(1, 20.0)
    assert curve(1) == pytest.approx(20, rel=0.05)
    assert curve(8) == pytest.approx(40, rel=0.35)
