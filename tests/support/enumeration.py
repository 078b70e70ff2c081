"""The exact law of a program that makes random choices: every way they can fall, each with its probability."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Hashable, Sequence
from dataclasses import dataclass, field
from random import Random
from typing import TypeVar

Outcome = TypeVar("Outcome", bound=Hashable)


@dataclass(slots=True)
class Choices:
    """The choices of one run, made as the runs before it have left them. `probability`: of this run so far."""

    path: list[tuple[int, tuple[float, ...]]] = field(default_factory=list)
    depth: int = 0
    probability: float = 1.0

    def choose(self, weights: Sequence[float]) -> int:
        """The place of one of the weights, which add up to 1 and are none of them 0."""
        if self.depth == len(self.path):
            self.path.append((0, tuple(weights)))
        place, known = self.path[self.depth]
        assert known == tuple(weights), "the same choices lead to another question: the run isn't determined by them"
        self.depth += 1
        self.probability *= weights[place]
        return place

    def following(self) -> Choices | None:
        """The choices of the next run; None after the last."""
        path = list(self.path)
        while path:
            place, weights = path.pop()
            if place + 1 < len(weights):
                return Choices([*path, (place + 1, weights)])
        return None


class Cells(Random):
    """Uniform numbers, of which one from the middle of each of `count` equal cells stands for all that lie in it.

    Exact where every number that they are compared with lies between two cells.
    """

    def __init__(self, choices: Choices, count: int) -> None:
        super().__init__()
        self._choices = choices
        self._count = count

    def random(self) -> float:
        return (self._choices.choose([1 / self._count] * self._count) + 0.5) / self._count


async def law(run: Callable[[Choices], Awaitable[Outcome]]) -> dict[Outcome, float]:
    """The probability of each outcome of a run that takes all its chance from the choices it is given."""
    found: dict[Outcome, float] = {}
    choices: Choices | None = Choices()
    while choices is not None:
        outcome = await run(choices)
        found[outcome] = found.get(outcome, 0.0) + choices.probability
        choices = choices.following()
    return found
