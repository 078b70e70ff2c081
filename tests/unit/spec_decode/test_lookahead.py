"""How many tokens the next round drafts."""

from __future__ import annotations

from specollama.spec_decode.lookahead import AdaptiveLookahead, FixedLookahead, ScheduledLookahead, SpeculationMonitor
from specollama.spec_decode.types import Draft, Origin, OutputToken, RoundRecord, Token, VerifyResult


def after(lookahead: AdaptiveLookahead, *rounds: tuple[int, int]) -> int:
    """The next length after rounds of (drafted, accepted)."""
    for drafted, accepted in rounds:
        lookahead.learn(fared(drafted, accepted))
    return lookahead.max_draft_tokens()


def fared(drafted: int, accepted: int) -> RoundRecord:
    return RoundRecord(Draft((Token("x"),) * drafted), VerifyResult(drafted=drafted, accepted=accepted))


def test_a_fixed_lookahead_stays_whatever_happens() -> None:
    lookahead = FixedLookahead(5)
    lookahead.learn(fared(5, 0))
    lookahead.learn(fared(5, 0))
    assert lookahead.max_draft_tokens() == 5
    assert str(lookahead) == "5"


def test_a_draft_accepted_whole_makes_the_next_one_longer() -> None:
    assert after(AdaptiveLookahead(), (4, 4)) == 6
    assert after(AdaptiveLookahead(), (1, 1)) == 6  # also where the draft ended early


def test_one_poor_round_changes_nothing() -> None:
    assert after(AdaptiveLookahead(), (4, 0)) == 4


def test_two_poor_rounds_in_a_row_halve_it() -> None:
    assert after(AdaptiveLookahead(), (4, 1), (4, 0)) == 2


def test_a_round_in_between_forgives_a_poor_one() -> None:
    assert after(AdaptiveLookahead(), (4, 1), (4, 2), (4, 1)) == 4
    assert after(AdaptiveLookahead(), (4, 1), (4, 4), (6, 1)) == 6


def test_after_a_halving_it_takes_two_more_poor_rounds() -> None:
    poor = (4, 0)
    assert after(AdaptiveLookahead(tokens=8), poor, poor, poor) == 4
    assert after(AdaptiveLookahead(tokens=8), poor, poor, poor, poor) == 2


def test_a_round_without_a_draft_teaches_nothing() -> None:
    assert after(AdaptiveLookahead(), (4, 0), (0, 0), (4, 0)) == 2
    assert after(AdaptiveLookahead(), (0, 0), (0, 0)) == 4


def test_it_stays_within_its_bounds() -> None:
    assert after(AdaptiveLookahead(max_tokens=7), *[(4, 4)] * 5) == 7
    assert after(AdaptiveLookahead(min_tokens=2), *[(4, 0)] * 10) == 2
    assert AdaptiveLookahead(min_tokens=1, max_tokens=2).max_draft_tokens() == 2
    assert AdaptiveLookahead(min_tokens=6, max_tokens=8).max_draft_tokens() == 6


def test_it_is_told_by_its_bounds() -> None:
    assert str(AdaptiveLookahead(1, 8)) == "1-8"
    assert str(AdaptiveLookahead(1, 1)) == "1"


# whether to go on


def watched(
    patience: SpeculationMonitor, rounds: int, *, tested: int, accepted: int, seconds: float = 1.0
) -> str | None:
    """What is said after so many rounds that fared so, each with one token beyond those accepted."""
    emitted = (OutputToken(Token("x"), Origin.ACCEPTED),) * (accepted + 1)
    for _ in range(rounds):
        patience.observe(VerifyResult(emitted, drafted=tested, tested=tested, accepted=accepted), len(emitted), seconds)
    return patience.stop_reason()


def test_a_few_rejected_tokens_prove_nothing() -> None:
    assert watched(SpeculationMonitor(), 23, tested=1, accepted=0) is None


def test_a_draft_that_is_hardly_ever_accepted_is_hopeless() -> None:
    assert watched(SpeculationMonitor(), 24, tested=1, accepted=0) == (
        "almost nothing of the draft is accepted (0 of 24 tested tokens)"
    )


def test_one_token_in_ten_is_not_hopeless() -> None:
    assert watched(SpeculationMonitor(), 3, tested=10, accepted=1) is None


def test_rounds_slower_than_plain_are_given_up() -> None:
    # two tokens in a second, where plain gives four
    assert (
        watched(SpeculationMonitor(plain_seconds_per_token=0.25), 8, tested=2, accepted=1)
        == "rounds are slower than plain here (0.50x)"
    )


def test_rounds_faster_than_plain_go_on() -> None:
    assert watched(SpeculationMonitor(plain_seconds_per_token=0.75), 8, tested=2, accepted=1) is None


def test_a_little_slower_is_within_what_is_measured() -> None:
    assert watched(SpeculationMonitor(plain_seconds_per_token=0.48), 8, tested=2, accepted=1) is None
    assert watched(SpeculationMonitor(plain_seconds_per_token=0.47), 8, tested=2, accepted=1) is not None


def test_rounds_in_which_slots_read_the_prompt_do_not_count() -> None:
    patience = SpeculationMonitor(plain_seconds_per_token=0.75)
    assert watched(patience, 2, tested=2, accepted=1, seconds=1000) is None
    assert watched(patience, 6, tested=2, accepted=1) is None


def test_speed_is_judged_after_some_rounds_only() -> None:
    assert watched(SpeculationMonitor(plain_seconds_per_token=0.25), 7, tested=2, accepted=1) is None


def test_without_a_measured_step_only_acceptance_is_watched() -> None:
    assert watched(SpeculationMonitor(), 50, tested=2, accepted=1, seconds=1e6) is None


def test_rounds_without_a_draft_are_not_judged_but_have_an_end() -> None:
    patience = SpeculationMonitor(plain_seconds_per_token=0.25)
    assert watched(patience, 63, tested=0, accepted=0) is None
    assert watched(patience, 1, tested=0, accepted=0) == "nothing was found to draft for 64 rounds"
    assert watched(patience, 7, tested=2, accepted=1) is None
    assert watched(patience, 1, tested=2, accepted=1) == "rounds are slower than plain here (0.50x)"


def test_lengths_by_round_end_with_the_last_one() -> None:
    staged = ScheduledLookahead((8, 4, 2))
    lengths = []
    for _ in range(5):
        lengths.append(staged.max_draft_tokens())
        staged.learn(RoundRecord(Draft(), VerifyResult()))
    assert lengths == [8, 4, 2, 2, 2]
    assert str(staged) == "8, 4, 2, ..."
    assert str(ScheduledLookahead((3,))) == "3"
