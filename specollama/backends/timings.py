"""Timings for decisions that are saved: taken in turn, reduced to their minimum, and doubted where they scatter.

Something else that runs for a while only makes a timing longer. So the works that are compared are timed in turn
(A B A B): a bad moment meets them all. The shortest of several looks counts. Where the looks at one work lie far
apart, even the shortest may be too long: such timings are used, but kept for minutes only.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Mapping, Sequence
from math import ceil
from statistics import median
from time import perf_counter, time
from typing import TypeVar

DOUBTED_FOR = 600.0  # seconds that a doubtful timing is kept: a bad moment passes
MAX_SCATTER = 1.5  # of the shortest look, that the median must not exceed

_Work = TypeVar("_Work", bound=Hashable)


def time_in_turn(
    works: Mapping[_Work, Callable[[], float]],
    *,
    looks: int,
    limit: float,
    always: int = 1,
    clock: Callable[[], float] = perf_counter,
) -> dict[_Work, list[float]]:
    """Time works in turn, each `looks` times, and answer the seconds of each look.

    A work answers the seconds that count of it, which may be less than it took. Works are in the order of their
    importance: from half of `limit` (seconds) on no further one begins, but for the first `always`. Those that began
    are looked at twice, and more often until the limit is reached.
    """
    began, times = clock(), dict[_Work, list[float]]()
    for number, (work, run) in enumerate(works.items()):
        if number >= always and clock() - began > limit / 2:
            break
        times[work] = [run()]
    for look in range(1, looks):
        for work, seen in times.items():
            if look > 1 and clock() - began > limit:
                return times
            seen.append(works[work]())
    return times


def is_scattered(looks: Sequence[float]) -> bool:
    """Whether repeated timings of one work differ so much that something else must have been running."""
    return len(looks) > 1 and median(looks) > MAX_SCATTER * min(looks)


def valid_until(*works: Sequence[float], now: Callable[[], float] = time) -> float | None:
    """When timings with these looks are to be taken anew (seconds since 1970); None where they are sound."""
    return now() + DOUBTED_FOR if any(map(is_scattered, works)) else None


def has_expired(until: float | None, now: float) -> bool:
    """Whether doubtful timings have been kept for long enough. Also where the clock was set back."""
    return until is not None and not 0 < until - now <= DOUBTED_FOR


def doubt_text(until: float | None, now: Callable[[], float] = time) -> str:
    """What to say of a decision that rests on doubtful timings: how long it stands; "" where they are sound."""
    return "" if until is None else f"timed in a busy moment, measured anew in {duration_until(until, now)}"


def duration_until(until: float, now: Callable[[], float] = time) -> str:
    """How long it is until then, in words."""
    minutes = max(1, ceil((until - now()) / 60))
    return f"{minutes} minute{'s' * (minutes > 1)}"
