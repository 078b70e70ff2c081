"""What a pass of a model costs by the number of tokens in it."""

from __future__ import annotations

from dataclasses import dataclass, field
from itertools import pairwise

from specollama.spec_decode.calibration import MAX_DRAFT_TOKENS

_SCALE_RATE = 0.2  # how fast the whole curve follows the machine


_SHAPE_RATE = 0.05  # how fast a point of it moves against the others


@dataclass(slots=True)
class CostCurve:
    """Seconds of a pass by its number of tokens: measured points, straight lines between them.

    A busy machine, or a longer context, makes all of it dearer; that is kept apart from the shape.
    """

    points: dict[int, float]
    scale: float = 1.0
    _shape_cache: list[float] = field(default_factory=list)  # the shape, by tokens: it is asked for thousands of times

    def __call__(self, tokens: int) -> float:
        if len(self._shape_cache) <= tokens:
            self._shape_cache = self._draw(max(tokens, MAX_DRAFT_TOKENS + 1))
        return self.scale * self._shape_cache[tokens]

    def observe(self, tokens: int, seconds: float) -> None:
        """A pass over so many tokens took so long."""
        ratio = min(4.0, max(0.25, seconds / self(tokens)))
        shape = self(tokens) / self.scale
        self.scale *= ratio**_SCALE_RATE
        self.points[tokens] = shape + _SHAPE_RATE * (shape * ratio - shape)
        self._shape_cache.clear()

    def _draw(self, most: int) -> list[float]:
        """The shape from 0 tokens to so many: level before the first point; past the last one the last line goes on."""
        sizes = sorted(self.points)
        drawn = [self.points[sizes[0]]] * (sizes[0] + 1)
        slope = 0.0
        for before, size in pairwise(sizes):
            slope = (self.points[size] - self.points[before]) / (size - before)
            drawn += [self.points[before] + slope * more for more in range(1, size - before + 1)]
        slope = max(0.0, slope)
        return drawn + [drawn[-1] + slope * more for more in range(1, most - sizes[-1] + 1)]
