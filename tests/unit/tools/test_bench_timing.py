"""What of a reply is decoding, to the nanosecond."""

from __future__ import annotations

import pytest

from specollama.tools.bench.reply_timing import ReplyTiming
from tests.support.replies import MS, timed, told


def test_decoding_is_timed_from_the_first_token_on_which_does_not_count() -> None:
    reply = timed([(500, told("It")), (600, told(" is")), (700, told(" so"))], 700, tokens=3)

    assert reply.first_text == 500 * MS
    assert reply.decode_duration == 200 * MS
    assert reply.tokens_per_second == pytest.approx(2 / 0.2)
    assert reply.tokens_per_second_overall == pytest.approx(3 / 0.7)


def test_the_tokens_of_a_first_burst_are_no_gift_to_the_side_that_begins_with_it() -> None:
    burst = [(500, told("It", 1)), (500, told(" is", 1)), (500, told(" so", 1)), (500, told(",", 1))]
    reply = timed([*burst, (600, told(" they", 2)), (600, told(" say", 2))], 600, tokens=6)

    assert reply.first_burst == 4
    assert reply.tokens_per_second == pytest.approx(2 / 0.1)


def test_a_reply_in_one_burst_has_no_speed_of_decoding() -> None:
    reply = timed([(500, told("It", 1)), (500, told(" is", 1))], 510, tokens=2)

    assert reply.tokens_per_second is None
    assert reply.tokens_per_second_overall is not None


def test_the_end_of_the_reply_counts_with_its_token_and_its_time() -> None:
    reply = timed([(100, told("No")), (200, told("."))], 300, tokens=3, reason="stop")

    assert reply.tokens_per_second == pytest.approx(2 / 0.2)


def test_a_reply_that_broke_off_has_no_speed() -> None:
    reply = ReplyTiming(began=0)
    reply.observe(told("It"), 5 * MS)

    assert reply.reply.reason is None
    assert reply.tokens_per_second is None
    assert reply.tokens_per_second_overall is None
