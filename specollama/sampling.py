"""The target's sampler, as far as it can be rebuilt from the most probable tokens.

llama.cpp samples in this order: penalties, dry, top_n_sigma, top_k, typical, top_p, min_p, xtc, temperature
last. A server shows at most 20 tokens with their raw log-probabilities. What the sampler would keep is then
certain, or it isn't: `support` answers with exact probabilities or with None, never with an approximation.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import fields, replace
from typing import Any

from specollama.types import SamplingOptions, Token

# Servers compute in 32 bits and print decimals: a cut that lies this close to a boundary is not certain.
_ROUNDING = 1e-5


def support(top: Sequence[Token], options: SamplingOptions) -> tuple[float, ...] | None:
    """The probabilities with which the sampler draws each of the first tokens of `top`.

    `top` holds raw log-probabilities, most probable first. The answer has one probability for each token that
    the sampler keeps, in the same order, adding up to 1; None when `top` doesn't show all that it keeps, or
    not for certain (penalties and typical_p move what raw log-probabilities don't show).
    """
    logprobs = [token.logprob for token in top if token.logprob is not None]
    if not logprobs or len(logprobs) != len(top) or options.penalised or options.typical_p < 1:
        return None
    if options.greedy:
        return (1.0,)
    kept = _kept(logprobs, options)
    return _tempered(logprobs[:kept], options.temperature) if kept else None


def _kept(logprobs: Sequence[float], options: SamplingOptions) -> int | None:
    """How many of the most probable tokens survive top_k, top_p and min_p; None when that is not certain."""
    seen = len(logprobs)
    probabilities = [math.exp(logprob) for logprob in logprobs]
    mass = sum(probabilities)
    if 1 <= options.top_k <= seen:
        probabilities = probabilities[: options.top_k]
        least = most = sum(probabilities)
    elif options.top_k <= 0:
        least = most = 1.0
    else:
        least, most = mass, min(1.0, mass + (options.top_k - seen) * probabilities[-1])
    complete = 1 <= options.top_k <= seen
    shortest = _cut(probabilities, options, least * (1 - _ROUNDING), 1 + _ROUNDING, complete)
    longest = _cut(probabilities, options, most * (1 + _ROUNDING), 1 - _ROUNDING, complete)
    kept = shortest if shortest == longest else None
    if kept is not None and kept < seen and logprobs[kept - 1] == logprobs[kept]:
        return None  # a tie at the cut: which of the two stays is the engine's secret
    return kept


def _cut(
    probabilities: Sequence[float], options: SamplingOptions, mass: float, slack: float, complete: bool
) -> int | None:
    """The tokens kept if those after top_k weigh `mass` and min_p is `slack` times what was asked."""
    by_top_p = _first_reaching(probabilities, options.top_p * mass) if options.top_p < 1 else None
    floor = options.min_p * slack * probabilities[0]
    by_min_p = next((place for place, p in enumerate(probabilities) if p < floor), None)
    cuts = [cut for cut in (by_top_p, by_min_p, len(probabilities) if complete else None) if cut is not None]
    return max(1, min(cuts)) if cuts else None


def _first_reaching(probabilities: Sequence[float], goal: float) -> int | None:
    total = 0.0
    for place, p in enumerate(probabilities):
        total += p
        if total >= goal:
            return place + 1
    return None


def _tempered(logprobs: Sequence[float], temperature: float) -> tuple[float, ...]:
    weights = [math.exp((logprob - logprobs[0]) / temperature) for logprob in logprobs]
    total = sum(weights)
    return tuple(weight / total for weight in weights)


def certain(options: SamplingOptions, limit: int) -> SamplingOptions:
    """The same options, narrowed so that `support` is always known from `limit` tokens.

    For a draft, whose distribution is free to choose: losslessness asks only that it is known.
    """
    top_k = options.top_k if 1 <= options.top_k <= limit else limit
    return replace(options, top_k=top_k, typical_p=1.0)


def effective(requested: Mapping[str, Any], modelfile: Mapping[str, Any], defaults: SamplingOptions) -> SamplingOptions:
    """The options that the server would use: the request's, else the Modelfile's, else the version's default.

    Names that aren't sampling options are passed over; None means unset, as in Ollama, and unsets nothing. `stop`
    of the request replaces the Modelfile's. A negative seed is Ollama's way to ask for a random one.
    """
    known = {field.name for field in fields(SamplingOptions)}
    asked = [item for source in (modelfile, requested) for item in source.items()]
    chosen = {name: value for name, value in asked if name in known and value is not None}
    if "stop" in chosen:
        stops = chosen["stop"]
        chosen["stop"] = (stops,) if isinstance(stops, str) else tuple(stops)
    if isinstance(chosen.get("seed"), int) and chosen["seed"] < 0:
        chosen["seed"] = None
    return replace(defaults, **chosen)
