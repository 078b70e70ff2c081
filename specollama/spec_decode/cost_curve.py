"""Cost of a forward pass of a model, in seconds, by its number of tokens."""

from __future__ import annotations

from dataclasses import dataclass, field
from itertools import pairwise

from specollama.spec_decode.calibration import MAX_DRAFT_TOKENS

_SCALE_RATE = 0.2  # smoothing exponent of the scale
_SHAPE_RATE = 0.05  # smoothing factor of a single point of the shape


@dataclass(slots=True)
class CostCurve:
    """Seconds of a forward pass by its number of tokens: measured points with linear interpolation.

    A busy machine or a longer context slows every pass. `scale` tracks that, apart from the shape in `points`.
    """

    points: dict[int, float]
    scale: float = 1.0
    _shape_cache: list[float] = field(
        default_factory=list
    )  # interpolated shape by tokens, cached because the planner reads it thousands of times

    def __call__(self, tokens: int) -> float:
        if len(self._shape_cache) <= tokens:
            self._shape_cache = self._interpolate(max(tokens, MAX_DRAFT_TOKENS + 1))
        return self.scale * self._shape_cache[tokens]

    def observe(self, tokens: int, seconds: float) -> None:
        """Update the curve with the measured duration of a pass over `tokens` tokens."""
        ratio = min(4.0, max(0.25, seconds / self(tokens)))
        shape = self(tokens) / self.scale
        self.scale *= ratio**_SCALE_RATE
        self.points[tokens] = shape + _SHAPE_RATE * (shape * ratio - shape)
        self._shape_cache.clear()

    def _interpolate(self, most: int) -> list[float]:
        """Interpolate the shape for 0 to `most` tokens. It is constant before the first point."""
        sizes = sorted(self.points)
        drawn = [self.points[sizes[0]]] * (sizes[0] + 1)
        slope = 0.0
        for before, size in pairwise(sizes):
            slope = (self.points[size] - self.points[before]) / (size - before)
            drawn += [self.points[before] + slope * more for more in range(1, size - before + 1)]
        slope = max(0.0, slope)
        return drawn + [drawn[-1] + slope * more for more in range(1, most - sizes[-1] + 1)]
