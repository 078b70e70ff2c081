"""How many tokens the next round drafts."""

from __future__ import annotations

from specollama.lookahead import AdaptiveLookahead, FixedLookahead


def after(lookahead: AdaptiveLookahead, *rounds: tuple[int, int]) -> int:
    """The next length after rounds of (drafted, accepted)."""
    for drafted, accepted in rounds:
        lookahead.learn(drafted, accepted)
    return lookahead.next()


def test_a_fixed_lookahead_stays_whatever_happens() -> None:
    lookahead = FixedLookahead(5)
    lookahead.learn(5, 0)
    lookahead.learn(5, 0)
    assert lookahead.next() == 5
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
    assert after(AdaptiveLookahead(most=7), *[(4, 4)] * 5) == 7
    assert after(AdaptiveLookahead(least=2), *[(4, 0)] * 10) == 2
    assert AdaptiveLookahead(least=1, most=2).next() == 2
    assert AdaptiveLookahead(least=6, most=8).next() == 6


def test_it_is_told_by_its_bounds() -> None:
    assert str(AdaptiveLookahead(1, 8)) == "1-8"
    assert str(AdaptiveLookahead(1, 1)) == "1"
