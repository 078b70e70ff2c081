"""What a sampler in llama.cpp's order draws from, over a whole vocabulary, in the plainest way."""

from __future__ import annotations

from collections.abc import Hashable, Mapping
from typing import TypeVar

from specollama.spec_decode.types import SamplingOptions

Outcome = TypeVar("Outcome", bound=Hashable)


def sampled(raw: Mapping[Outcome, float], options: SamplingOptions) -> dict[Outcome, float]:
    """top_k, then top_p, then min_p, then temperature; the outcomes that are left, most probable first."""
    kept = sorted(((p, outcome) for outcome, p in raw.items() if p > 0), key=lambda entry: -entry[0])
    if options.temperature <= 0:
        return {kept[0][1]: 1.0}
    if options.top_k > 0:
        kept = kept[: options.top_k]
    if options.top_p < 1:
        mass, reached = sum(p for p, _ in kept), 0.0
        for place, (p, _) in enumerate(kept):
            reached += p / mass
            if reached >= options.top_p:
                kept = kept[: place + 1]
                break
    kept = [entry for entry in kept if entry[0] >= min(1.0, options.min_p) * kept[0][0]]
    weights = {outcome: (p / kept[0][0]) ** (1 / options.temperature) for p, outcome in kept}
    total = sum(weights.values())
    return {outcome: weight / total for outcome, weight in weights.items()}
