"""Exact laws instead of statistics: an experiment is run once for each way its random choices may go.

A random number is known only as far as it was compared: each comparison that is still open splits the run in two, with
the exact probabilities of both answers. What was answered stays so: the same number gives the same answers again.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Hashable, Sequence
from random import Random
from typing import Any, TypeVar

Outcome = TypeVar("Outcome", bound=Hashable)

_NOTHING = 1e-9  # a share that is rounding, not probability


class Chance:
    """The choices of one run after another: depth first through all of them."""

    def __init__(self) -> None:
        self._taken: list[int] = []  # the choices of the present run, as far as they are decided
        self._open: list[list[int]] = []  # at each of them: what is still to be tried
        self._place = 0
        self.probability = 1.0

    def choose(self, shares: Sequence[float]) -> int:
        """One of the alternatives, whose probabilities add up to 1."""
        if self._place == len(self._taken):
            possible = [place for place, share in enumerate(shares) if share > _NOTHING]
            self._taken.append(possible[0])
            self._open.append(possible[1:])
        chosen = self._taken[self._place]
        self._place += 1
        self.probability *= shares[chosen]
        return chosen

    def next(self) -> bool:
        """Go on to the next run; False when there is none."""
        while self._open and not self._open[-1]:
            self._open.pop()
            self._taken.pop()
        if not self._open:
            return False
        self._taken[-1] = self._open[-1].pop(0)
        self._place, self.probability = 0, 1.0
        return True


class Uniform:
    """A number that is drawn uniformly from 0 to 1, as far as it was asked for."""

    def __init__(self, chance: Chance) -> None:
        self._chance = chance
        self._low, self._high = 0.0, 1.0

    def below(self, threshold: float) -> bool:
        share = (threshold - self._low) / (self._high - self._low)
        if share <= _NOTHING or share >= 1 - _NOTHING:
            return share > 0.5
        below = self._chance.choose((share, 1 - share)) == 0
        self._low, self._high = (self._low, threshold) if below else (threshold, self._high)
        return below

    def place(self, probabilities: Sequence[float]) -> int:
        """The entry whose share of the line from 0 to 1 the number lies in."""
        total = 0.0
        for place, probability in enumerate(probabilities[:-1]):
            total += probability
            if self.below(total):
                return place
        return len(probabilities) - 1


class _Line:
    """A uniform number times `scale` and plus `shift`: what the acceptance rules compute with it."""

    def __init__(self, number: Uniform, scale: float = 1.0, shift: float = 0.0) -> None:
        self._number, self._scale, self._shift = number, scale, shift

    def __mul__(self, factor: float) -> _Line:
        return _Line(self._number, self._scale * factor, self._shift * factor)

    def __sub__(self, shift: float) -> _Line:
        return _Line(self._number, self._scale, self._shift - shift)

    def __lt__(self, limit: float) -> bool:
        return self._number.below((limit - self._shift) / self._scale)


class EveryRandom(Random):
    """A generator whose `random()` takes every value."""

    def __init__(self, chance: Chance) -> None:
        super().__init__()
        self._chance = chance

    def random(self) -> Any:
        return _Line(Uniform(self._chance))


async def law(experiment: Callable[[Chance], Awaitable[Outcome]], *, most: int = 100_000) -> dict[Outcome, float]:
    """The probability of each outcome. `most`: runs, beyond which an experiment is too large to be written out."""
    chance, found = Chance(), dict[Outcome, float]()
    for _ in range(most):
        outcome = await experiment(chance)
        found[outcome] = found.get(outcome, 0.0) + chance.probability
        if not chance.next():
            return found
    raise AssertionError(f"more than {most} runs")
