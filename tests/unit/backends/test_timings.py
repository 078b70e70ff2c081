"""Timings that are kept: made-up machines with bad moments, and what is believed of what they seem to cost."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import pytest
from hypothesis import given
from hypothesis import strategies as st

from specollama.backends.llama_cpp.requantize import compared_until, is_faster
from specollama.backends.ollama.slot_probe import ProbeSample, from_samples
from specollama.backends.timings import DOUBTED_FOR, doubt_text, has_expired, is_scattered, time_in_turn, valid_until

NOW = 1_000_000.0


@dataclass
class Machine:
    """A clock that works move on; from `begins` to `ends` all takes `times` as long."""

    begins: float = 0.0
    ends: float = 0.0
    times: float = 1.0
    now: float = 0.0

    def clock(self) -> float:
        return self.now

    def work(self, seconds: float) -> Callable[[], float]:
        def run() -> float:
            busy = self.begins <= self.now < self.ends
            took = seconds * (self.times if busy else 1)
            self.now += took
            return took

        return run


def test_works_are_timed_in_turn_so_that_a_bad_moment_meets_all_and_spoils_none() -> None:
    machine = Machine(begins=0.0, ends=0.5, times=20)
    works = {"file": machine.work(0.02), "copy": machine.work(0.01)}
    times = time_in_turn(works, looks=4, limit=10, clock=machine.clock)

    assert {work: min(looks) for work, looks in times.items()} == {"file": 0.02, "copy": 0.01}
    assert [len(looks) for looks in times.values()] == [4, 4]
    assert times["file"][0] == pytest.approx(0.4)  # as it was in the bad moment


def test_of_many_works_the_first_are_timed_twice_when_time_is_short() -> None:
    machine = Machine()
    works = {size: machine.work(0.3) for size in (1, 8, 2, 4)}
    times = time_in_turn(works, looks=3, limit=1.0, always=2, clock=machine.clock)

    assert {size: len(looks) for size, looks in times.items()} == {1: 2, 8: 2}


def test_works_that_take_longer_than_the_limit_are_timed_nevertheless() -> None:
    machine = Machine()
    times = time_in_turn(
        {1: machine.work(5.0), 8: machine.work(9.0), 2: machine.work(6.0)},
        looks=3,
        limit=1.0,
        always=2,
        clock=machine.clock,
    )

    assert list(times) == [1, 8]
    assert min(times[1]) == 5.0


@given(st.floats(0.001, 1), st.lists(st.floats(1.0, 1.4), min_size=2, max_size=8))
def test_looks_that_lie_close_together_are_believed(step: float, noise: list[float]) -> None:
    assert valid_until([step * each for each in noise], now=lambda: NOW) is None


def test_looks_that_lie_far_apart_are_doubted_for_minutes() -> None:
    assert is_scattered([0.01, 0.02, 0.03])
    assert not is_scattered([0.01, 0.01, 0.5])  # one bad moment among three good ones
    assert not is_scattered([0.5])
    until = valid_until([0.01, 0.01], [0.01, 0.03], now=lambda: NOW)
    assert until == NOW + DOUBTED_FOR
    assert [has_expired(until, NOW + later) for later in (0, DOUBTED_FOR - 1, DOUBTED_FOR, 86_400)] == [
        False,
        False,
        True,
        True,
    ]
    assert has_expired(until, NOW - 86_400)  # the clock was set back
    assert not has_expired(None, NOW)


def test_a_doubt_says_how_long_it_lasts() -> None:
    assert doubt_text(NOW + 600, lambda: NOW) == "timed in a busy moment, measured anew in 10 minutes"
    assert doubt_text(NOW + 61, lambda: NOW) == "timed in a busy moment, measured anew in 2 minutes"
    assert doubt_text(NOW + 30, lambda: NOW) == "timed in a busy moment, measured anew in 1 minute"
    assert doubt_text(None) == ""


@pytest.mark.parametrize(
    ("steps", "copied", "better", "doubted"),
    [
        ([0.020, 0.021, 0.020], [0.010, 0.010, 0.011], True, False),
        ([0.020, 0.021, 0.020], [0.019, 0.019, 0.019], False, False),
        ([0.793, 0.800, 0.793], [0.010, 0.010, 0.010], True, True),  # 79.3 times: no copy is
        ([0.020, 0.200, 0.300], [0.010, 0.010, 0.010], True, True),
        ([0.020, 0.020, 0.020], [0.019, 0.150, 0.200], False, True),
    ],
)
def test_a_copy_is_weighed_by_the_shortest_steps_and_doubted_where_they_scatter(
    steps: list[float], copied: list[float], better: bool, doubted: bool
) -> None:
    assert is_faster(min(steps), min(copied)) is better
    assert compared_until(steps, copied, lambda: NOW) == (NOW + DOUBTED_FOR if doubted else None)


def look(step: float, rows: float = 0.15, draft: float = 0.05) -> ProbeSample:
    return ProbeSample(step, 0.001, rows, 0.12, draft, slots=4, holes=False, row_tokens=1)


def test_a_pairs_costs_are_the_shortest_of_all_looks() -> None:
    probe = from_samples([look(0.1, rows=0.6), look(0.12, rows=0.2)], 0.001, True, lambda: NOW)

    assert (probe.step, probe.rows, probe.slots) == (0.1, 0.2, 4)
    assert probe.until == NOW + DOUBTED_FOR  # its rows took three times as long once
    assert from_samples([look(0.1), look(0.12)], 0.001, True, lambda: NOW).until is None
    assert from_samples([look(0.1)], 0.001, True, lambda: NOW).until is None
