"""How long replies are: learnt from those that ended, by kind of request."""

from __future__ import annotations

import pytest

from specollama.spec_decode.reply_length import LengthsByRequest, ReplyLengths

SHORT, LONG = [1, 2, 3], list(range(500))


def seen(lengths: ReplyLengths, *replies: int) -> ReplyLengths:
    for tokens in replies:
        for before in range(tokens):
            lengths.observe_progress(before, before + 1)
        lengths.observe_end(tokens)
    return lengths


def test_replies_that_ended_early_make_the_next_one_short() -> None:
    unknown, known = ReplyLengths(), seen(ReplyLengths(), *[10] * 20)
    assert known.expected_tokens(0, None) < 30 < 300 < unknown.expected_tokens(0, None)
    assert 8 < known.quantile_tokens(0, None, 0.9) < 12  # all of them ended in the bucket from 8 to 12


def test_the_longer_a_reply_is_the_longer_it_goes_on_before_any_was_seen() -> None:
    lengths = ReplyLengths()
    assert lengths.expected_tokens(100, 8192) > lengths.expected_tokens(0, 8192) > 0


def test_a_limit_bounds_what_is_still_to_come() -> None:
    assert ReplyLengths().expected_tokens(30, 40) <= 10
    assert ReplyLengths().quantile_tokens(30, 30, 0.9) == 0


@pytest.mark.parametrize(("first", "second", "same"), [(SHORT, SHORT, True), (SHORT, LONG, False)])
def test_a_long_prompt_is_another_kind_of_request(first: list[int], second: list[int], same: bool) -> None:
    kinds = LengthsByRequest()
    assert (kinds.for_prompt(first) is kinds.for_prompt(second)) is same


def test_a_client_that_begins_otherwise_learns_from_the_wider_kind() -> None:
    kinds = LengthsByRequest()
    seen(kinds.for_prompt([1, 2, 3]), *[10] * 20)
    assert kinds.for_prompt([7, 8, 9]).expected_tokens(0, None) < 40


def test_replies_to_long_prompts_tell_nothing_of_those_to_short_ones() -> None:
    kinds = LengthsByRequest()
    seen(kinds.for_prompt(LONG), *[10] * 20)
    assert kinds.for_prompt(SHORT).expected_tokens(0, None) == ReplyLengths().expected_tokens(0, None)
