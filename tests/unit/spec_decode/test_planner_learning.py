"""What the planner learns from a round: which of its times say what a pass, a drafted token and a read token cost."""

from __future__ import annotations

import pytest

from specollama.spec_decode.calibration import Calibration, DrafterStats, acceptance_outcomes
from specollama.spec_decode.cost_curve import CostCurve
from specollama.spec_decode.planner import Planner
from specollama.spec_decode.types import AcceptanceMethod, Draft, Origin, OutputToken, RoundRecord, Token, VerifyResult

COSTS = {1: 0.1, 2: 0.2, 4: 0.4}  # seconds of a pass by its tokens


def planner(**sources: DrafterStats) -> Planner:
    return Planner(CostCurve(dict(COSTS)), sources, AcceptanceMethod.GREEDY)


def round(draft: Draft, *, scoring: float = 0.1, read: int = 0) -> RoundRecord:
    """All of the draft was sent and accepted, and a bonus token came."""
    tokens = (*draft.tokens, Token("."))
    verdict = VerifyResult(tuple(OutputToken(token, Origin.ACCEPTED) for token in tokens), *[len(draft.tokens)] * 3)
    return RoundRecord(draft, verdict, sum(draft.step_seconds), scoring, read)


def drafted(source: str, *steps: float, read: int = 0) -> Draft:
    return Draft((Token("a"),) * len(steps), (), source, (0.9,) * len(steps), steps, read)


def test_a_pass_is_held_against_what_one_of_as_many_tokens_takes() -> None:
    learning = planner(draft=DrafterStats(decode_seconds=0.01))
    for length in (0, 1, 3):
        learning.learn(round(drafted("draft", *[0.01] * length), scoring=COSTS[length + 1]))
    assert [learning.target_cost(size) for size in COSTS] == pytest.approx(list(COSTS.values()))


def test_a_slower_pass_makes_the_next_ones_dearer_a_little_at_a_time() -> None:
    learning = planner()
    learning.learn(round(Draft(), scoring=0.2))
    assert 0.1 < learning.target_cost(1) < 0.15
    assert 0.2 < learning.target_cost(2) < 0.3
    learning.learn(round(Draft(), scoring=0.01))
    assert learning.target_cost(1) < 0.11


def test_a_pass_in_which_the_text_was_read_does_not_count() -> None:
    learning = planner()
    learning.learn(round(Draft(), scoring=3.0, read=500))
    assert learning.target_cost(1) == 0.1


def test_the_first_step_of_a_draft_tells_of_reading_and_the_others_of_a_token() -> None:
    source = DrafterStats(decode_seconds=0.01)
    learning = planner(draft=source)
    learning.learn(round(drafted("draft", 5.0, 0.01, 0.01)))
    assert (source.decode_seconds, source.prefill_seconds_per_token) == (pytest.approx(0.01), 0.0)
    learning.learn(round(drafted("draft", 1.01, 0.01, read=100)))
    assert source.decode_seconds == pytest.approx(0.01)
    assert source.prefill_seconds_per_token == pytest.approx(0.005)  # half way to 0.01 a token
    learning.learn(round(drafted("draft", 0.01, 0.02)))
    assert 0.01 < source.decode_seconds < 0.015


def test_a_model_rests_while_others_draft() -> None:
    sources = {"small": DrafterStats(decode_seconds=0.01), "large": DrafterStats(decode_seconds=0.05)}
    learning = planner(**sources)
    for name in ("small", "small", "large", "small"):
        learning.learn(round(drafted(name, 0.01)))
    assert (sources["small"].rounds_idle, sources["large"].rounds_idle) == (0, 1)


def verdict(*texts: str) -> VerifyResult:
    return VerifyResult(tuple(OutputToken(Token(text), Origin.ACCEPTED) for text in texts))


@pytest.mark.parametrize(
    ("written", "expected"),
    [
        (["the", " cat"], [(0.9, True), (0.8, True)]),  # what lies behind wasn't reached
        (["the", " dog"], [(0.9, True), (0.8, False)]),
        (["the cat sat"], [(0.9, True), (0.8, True), (0.7, True)]),
        (["a", " cat"], [(0.9, False)]),
        (["the", " ca"], [(0.9, True), (0.8, False)]),
        ([], []),
    ],
)
def test_a_drafted_token_is_judged_where_the_reply_has_reached_its_place(
    written: list[str], expected: list[tuple[float, bool]]
) -> None:
    tokens = tuple(map(Token, ("the", " cat", " sat")))
    assert acceptance_outcomes(Draft(tokens, confidence=(0.9, 0.8, 0.7)), verdict(*written)) == expected


def test_a_calibration_begins_with_the_confidence_and_believes_in_no_certainty() -> None:
    fresh = Calibration()
    assert fresh.probability(0.6) == pytest.approx(0.6)
    assert 0 < fresh.probability(0.0) < 0.01
    assert 0.99 < fresh.probability(1.0) < 1


def test_a_calibration_follows_what_was_accepted_and_forgets_what_was_long_ago() -> None:
    known = Calibration()
    for accepted, bound in ((True, 0.97), (False, 0.1)):
        for _ in range(2000):
            known.observe(0.5, accepted)
        assert known.probability(0.5) > bound if accepted else known.probability(0.5) < bound
    assert known.probability(0.9) == pytest.approx(0.9), "another confidence"
