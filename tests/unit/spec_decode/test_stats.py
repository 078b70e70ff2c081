"""Counts of a reply, and the rates read off them."""

from __future__ import annotations

import pytest

from specollama.spec_decode.events import Status, decode_rate, first_burst
from specollama.spec_decode.metrics import Stats
from specollama.spec_decode.types import Origin, OutputToken, Token, VerifyResult


def verdict(drafted: int, tested: int, accepted: int, last: Origin | None) -> VerifyResult:
    origins = [Origin.ACCEPTED] * accepted + ([last] if last else [])
    return VerifyResult(tuple(OutputToken(Token("x"), origin) for origin in origins), drafted, tested, accepted)


def recorded(*verdicts: VerifyResult) -> Stats:
    stats = Stats()
    for each in verdicts:
        stats.record(each)
    return stats


def test_rounds_add_up() -> None:
    stats = recorded(
        verdict(4, 3, 2, Origin.RECOVERED),
        verdict(3, 3, 3, Origin.BONUS),
        verdict(2, 1, 0, Origin.RECOVERED),
        verdict(0, 0, 0, Origin.PLAIN),
        verdict(2, 2, 2, None),
    )
    assert (stats.rounds, stats.drafted, stats.tested, stats.accepted) == (4, 11, 9, 7)
    assert (stats.recovered, stats.bonus, stats.plain) == (2, 1, 1)
    assert stats.accepted_at == [3, 3, 1]


def test_the_acceptance_rate_leaves_out_what_was_never_tested() -> None:
    stats = recorded(verdict(8, 2, 1, Origin.RECOVERED))
    assert stats.acceptance_rate == 0.5
    assert stats.draft_efficiency == 0.125


def test_the_mean_accepted_length_includes_the_recovered_or_bonus_token() -> None:
    assert recorded(verdict(4, 4, 4, Origin.BONUS), verdict(4, 1, 0, Origin.RECOVERED)).mean_accepted_length == 3


def test_rates_of_nothing_are_not_known() -> None:
    stats = Stats()
    assert stats.acceptance_rate is None
    assert stats.draft_efficiency is None
    assert stats.mean_accepted_length is None
    assert stats.tokens_per_second is None


def test_the_speed_is_tokens_over_the_whole_reply() -> None:
    assert Stats(eval_count=30, total_duration=1_500_000_000).tokens_per_second == pytest.approx(20)


def test_the_status_is_one_line() -> None:
    assert str(Status(on=True, detail="lanes, lookahead 1-8")) == "speculation: on (lanes, lookahead 1-8)"
    assert str(Status(on=False, detail="the target has 1 slot")) == "speculation: off (the target has 1 slot)"


@pytest.mark.parametrize(
    ("rounds", "tokens"),
    [([], 0), ([0], 1), ([0, 0, 0], 1), ([1, 1, 1], 3), ([1, 1, 2, 1], 2), ([0, 1, 1], 1), ([2, 0, 2], 1)],
)
def test_the_first_burst_is_one_round_or_one_token(rounds: list[int], tokens: int) -> None:
    assert first_burst(rounds) == tokens


def test_decoding_is_timed_from_the_first_burst_on() -> None:
    assert decode_rate(7, 3, 2.0) == 2.0
    assert decode_rate(3, 3, 2.0) is None
    assert decode_rate(7, 3, 0.0) is None
