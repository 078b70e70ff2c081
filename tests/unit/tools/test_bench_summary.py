"""From measurements to figures, and what never becomes one."""

from __future__ import annotations

from dataclasses import replace

import pytest

from specollama.tools.bench.near_ties import GapDrift
from specollama.tools.bench.runner import Measurement, Measurements, comparison_faults
from specollama.tools.bench.summary import ContestantFigures, contestant_figures
from tests.support.replies import measured, timed, told

WORDS = "one two three four five six"


def figures(*found: Measurement, **more: object) -> ContestantFigures:
    return contestant_figures(Measurements(list(found), **more), "lanes")  # type: ignore[arg-type]


def test_the_speedup_is_the_ratio_of_decoding_speeds() -> None:
    found = figures(measured("plain", WORDS, 20), measured("lanes", WORDS, 10))

    assert found.speedup == pytest.approx(2)
    assert found.summary()["speedup_by_kind"] == {"code": pytest.approx(2)}
    assert found.summary()["speedup_min"] == pytest.approx(2)
    assert found.summary()["identical_share"] == 1
    assert found.interval is None


def test_kinds_are_kept_apart_and_all_is_the_geometric_mean() -> None:
    found = figures(
        measured("plain", WORDS, 20, question="a"),
        measured("lanes", WORDS, 5, question="a"),
        measured("plain", WORDS, 20, question="b", kind="chat"),
        measured("lanes", WORDS, 20, question="b", kind="chat"),
    )
    summary = found.summary()

    assert summary["speedup_geomean"] == pytest.approx(2)
    assert summary["speedup_by_kind"] == {"code": pytest.approx(4), "chat": pytest.approx(1)}
    assert (summary["slowest_prompt"], summary["speedup_min"]) == ("b", pytest.approx(1))


def seen(found: Measurement) -> Measurement:
    return replace(found, seen_before=True, prompt_cached=True)


def test_replies_to_a_prompt_seen_before_never_enter_the_figure_of_first_replies() -> None:
    found = figures(
        *(measured("plain", WORDS, 20), measured("lanes", WORDS, 10, drafted=6, accepted=3, rounds=3)),
        *(measured("plain", WORDS, 20), seen(measured("lanes", WORDS, 2, drafted=600, accepted=600, rounds=100))),
    )
    summary = found.summary()

    assert summary["speedup_geomean"] == pytest.approx(2)
    assert summary["speedup_overall_geomean"] == pytest.approx(2)
    assert summary["seen_before"] == {"speedup": pytest.approx(10), "speedup_overall": pytest.approx(10), "replies": 1}
    assert found.kinds["code"].as_object()["seen_before"] == summary["seen_before"]
    assert summary["draft_efficiency"] == 0.5
    assert found.interval is None


def test_a_first_reply_with_the_prompt_in_one_sides_cache_alone_is_compared_in_decoding_only() -> None:
    found = figures(measured("plain", WORDS, 20), replace(measured("lanes", WORDS, 10), prompt_cached=True))

    assert (found.speedup, found.speedup_overall) == (pytest.approx(2), None)
    assert found.rate("first_token") is None


def test_a_side_that_only_ever_saw_the_prompt_before_has_no_figure_of_first_replies() -> None:
    found = figures(measured("plain", WORDS, 20), seen(measured("lanes", WORDS, 10)))

    assert found.speedup is None
    assert found.summary()["seen_before"]["speedup"] == pytest.approx(2)


def test_counts_are_added_up_before_rates_are_made() -> None:
    counts = {"rounds": 4, "drafted": 10, "tested": 8, "accepted": 6, "emitted": 10}
    more = {"rounds": 1, "drafted": 10, "tested": 2, "accepted": 1, "emitted": 2}
    found = figures(
        measured("plain", WORDS, question="a"),
        measured("lanes", WORDS, question="a", **counts),
        measured("plain", WORDS, question="b"),
        measured("lanes", WORDS, question="b", **more),
    ).summary()

    assert found["acceptance_rate"] == 7 / 10
    assert found["draft_efficiency"] == 7 / 20
    assert found["mean_accepted_length"] == 12 / 5


@pytest.mark.parametrize(
    ("plain", "side", "error"),
    [
        (measured("plain", WORDS), measured("lanes", ""), "lanes: the reply is empty"),
        (measured("plain", ""), measured("lanes", WORDS), "plain: the reply is empty"),
        (
            measured("plain", WORDS),
            measured("lanes", "one two"),
            "lanes: the reply was cut at 2 tokens, where plain gave 6",
        ),
        (
            measured("plain", WORDS),
            replace(measured("lanes", WORDS), fault="http://tower: it broke"),
            "lanes: http://tower: it broke",
        ),
    ],
)
def test_a_reply_that_is_none_is_an_error_and_never_a_factor(plain: Measurement, side: Measurement, error: str) -> None:
    found = figures(plain, side)

    assert [prompt.error for prompt in found.errors] == [error]
    assert found.speedup is None
    assert found.identical_share is None
    assert found.summary()["errors"] == {"a": error}


def test_one_bad_reply_among_several_repeats_takes_the_factor_away() -> None:
    good = [measured("plain", WORDS), measured("lanes", WORDS)]
    found = figures(*good, measured("plain", WORDS), measured("lanes", ""))

    assert found.speedup is None
    assert len(found.errors) == 1


def test_a_reply_that_ended_by_itself_may_be_shorter() -> None:
    ended = measured("lanes", "one two", tokens=3, reason="stop")
    assert list(comparison_faults([(measured("plain", WORDS), ended)])) == []


def test_the_last_token_that_old_servers_lose_is_no_fault() -> None:
    assert (
        list(comparison_faults([(measured("plain", "one two three"), measured("lanes", "one two three four"))])) == []
    )


def test_a_reply_in_one_burst_has_no_factor_and_is_no_error() -> None:
    burst = timed([(50, told("one ", 1)), (50, told("two ", 1))], 60, tokens=2)
    found = figures(measured("plain", "one two"), Measurement("lanes", "a", "code", 0, burst))

    assert found.speedup is None
    assert found.errors == []
    assert found.identical_share == 1


def difference(gap: float, bound: GapDrift) -> bool | None:
    plain = timed([(10, told("It ")), (20, told("is "))], 30, tokens=3)
    side = timed([(10, told("It ", 1)), (20, told("was ", 2, a=-1.0, b=-1.0 - gap))], 30, tokens=3)
    pair = [Measurement("plain", "a", "code", 0, plain), Measurement("lanes", "a", "code", 0, side)]
    [found] = figures(*pair, gap_drifts={"lanes": bound}).differences
    assert found.offset == 3
    assert found.gap == pytest.approx(gap)
    return found.near_tie


def test_a_gap_is_held_against_the_bound_that_was_measured() -> None:
    assert difference(0.05, GapDrift([0.1] * 200)) is True
    assert difference(0.05, GapDrift([0.01] * 200)) is False
    assert difference(0.05, GapDrift()) is False


def test_where_the_side_tells_no_gap_that_of_plain_is_taken() -> None:
    plain = timed([(10, told("It ", a=-0.1, b=-3.0)), (20, told("is ", a=-0.7, b=-0.71))], 30, tokens=3)
    side = timed([(10, told("It ", 1)), (20, told("was ", 2))], 30, tokens=3)
    pair = [Measurement("plain", "a", "code", 0, plain), Measurement("lanes", "a", "code", 0, side)]

    [found] = figures(*pair, plain_replies={"a": plain.reply}).differences
    assert (found.gap, found.near_tie) == (pytest.approx(0.01), True)
    [unknown] = figures(*pair).differences
    assert (unknown.gap, unknown.near_tie) == (None, None)


def test_where_one_token_begins_like_another_the_gap_is_that_of_these_two() -> None:
    plain = timed([(10, told("so", a=-0.1, b=-3.0)), (20, told("::", a=-0.7, b=-0.71)), (30, told("1"))], 40, tokens=4)
    side = timed(
        [(10, told("so", 1)), (20, told(":", 2, a=-0.7, b=-0.72)), (30, told("2", 2, a=0, b=-5))], 40, tokens=4
    )
    pair = [Measurement("plain", "a", "code", 0, plain), Measurement("lanes", "a", "code", 0, side)]
    [found] = figures(*pair, plain_replies={"a": plain.reply}).differences
    assert (found.offset, found.gap) == (3, pytest.approx(0.02))


def test_where_one_reply_ended_the_gap_is_not_known() -> None:
    plain = timed([(10, told("It ", a=-0.7, b=-0.71)), (20, told("is "))], 30, tokens=3)
    side = timed([(10, told("It ", 1, a=-0.7, b=-0.71))], 30, tokens=2)
    pair = [Measurement("plain", "a", "code", 0, plain), Measurement("lanes", "a", "code", 0, side)]
    [found] = figures(*pair, plain_replies={"a": plain.reply}).differences
    assert (found.offset, found.gap) == (3, None)


def test_the_routes_that_replies_really_took_are_told_with_their_reasons() -> None:
    plain, side = measured("plain", WORDS), measured("lanes", WORDS)
    side.reply.stats.reason = "the target has 1 slot"

    assert figures(plain, side).summary()["routes"] == {"plain (the target has 1 slot)": 1}
