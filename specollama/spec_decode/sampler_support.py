"""The target's sampler, as far as it can be rebuilt from the most probable tokens.

llama.cpp samples in this order: penalties, dry, top_n_sigma, top_k, typical, top_p, min_p, xtc, temperature
last. A server shows at most 20 tokens with their raw log-probabilities. What the sampler would keep is then
certain, or it isn't: `support` answers with exact probabilities or with None, never with an approximation.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from itertools import pairwise
from typing import Any

from specollama.errors import UsageError, one_line
from specollama.spec_decode.types import OPTION_TYPES, SamplingOptions, Token

# Servers compute in 32 bits and print decimals: a cut that lies this close to a boundary is not certain.
_ROUNDING = 1e-5
_COLDEST = 0.05  # of temperature, which multiplies the rounding of log-probabilities: below it p would be a guess

_LARGEST, _SMALLEST = 3.4e38, 1e-45  # of 32-bit floats, which Ollama keeps options in
_LEAST_PENALTY = 1e-30  # dividing a logit by less overflows 32 bits


def support(top: Sequence[Token], options: SamplingOptions) -> tuple[float, ...] | None:
    """The probabilities with which the sampler draws each of the first tokens of `top`.

    `top` holds raw log-probabilities, most probable first. The answer has one probability for each token that
    the sampler keeps, in the same order, adding up to 1; None when `top` doesn't show all that it keeps, or
    not for certain: penalties and typical_p move what raw log-probabilities don't show, a temperature near 0 makes
    their rounding count, and numbers that can't be log-probabilities say nothing.
    """
    logprobs = [token.logprob for token in top if token.logprob is not None]
    if options.not_rebuilt:
        return None
    if len(logprobs) != len(top) or not _sound(logprobs) or options.penalised or not options.typical_p >= 1:
        return None
    if options.greedy:
        return (1.0,)
    if not (_COLDEST <= options.temperature < math.inf and math.isfinite(options.top_p + options.min_p)):
        return None
    kept = _survivors(logprobs, options)
    return _apply_temperature(logprobs[:kept], options.temperature) if kept else None


def _sound(logprobs: Sequence[float]) -> bool:
    """Whether these can be log-probabilities, most probable first: not above 0, in order, of a mass from 0 to 1."""
    if not logprobs or not logprobs[0] <= _ROUNDING:
        return False
    ordered = all(before >= after for before, after in pairwise(logprobs))  # false for what isn't a number, too
    return ordered and 0 < sum(map(math.exp, logprobs)) <= 1 + _ROUNDING


def _survivors(logprobs: Sequence[float], options: SamplingOptions) -> int | None:
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


def _apply_temperature(logprobs: Sequence[float], temperature: float) -> tuple[float, ...]:
    weights = [math.exp((logprob - logprobs[0]) / temperature) for logprob in logprobs]
    total = sum(weights)
    return tuple(weight / total for weight in weights)


def restrict_to_shown(options: SamplingOptions, limit: int) -> SamplingOptions:
    """The same options, narrowed so that `support` is always known from `limit` tokens.

    For a draft, whose distribution is free to choose: losslessness asks only that it is known.
    """
    top_k = options.top_k if 1 <= options.top_k <= limit else limit
    return replace(options, top_k=top_k, typical_p=1.0)


def resolve_sampling(
    requested: Mapping[str, Any], modelfile: Mapping[str, Any], defaults: SamplingOptions
) -> SamplingOptions:
    """The options that the server would use: the request's, else the Modelfile's, else the version's default.

    Names that aren't sampling options are passed over; None means unset, as in Ollama, and unsets nothing. `stop`
    of the request replaces the Modelfile's. A negative seed is Ollama's way to ask for a random one.

    Raises UsageError where a value is none that Ollama could be sent: not a number, infinite, or no text to stop at.
    """
    asked = [item for source in (modelfile, requested) for item in source.items()]
    chosen = {name: _kept_by_ollama(name, value) for name, value in asked if name in OPTION_TYPES and value is not None}
    if "seed" in chosen and chosen["seed"] < 0:
        chosen["seed"] = None
    return replace(defaults, **chosen)


def _kept_by_ollama(name: str, value: Any) -> Any:
    """An option's value as Ollama keeps it: whole numbers, and 32-bit floats, for which the tiniest are 0."""
    if name == "stop":
        return _stops(value)
    number = isinstance(value, int | float) and not isinstance(value, bool)
    if not number or not abs(value) <= _LARGEST:
        raise UsageError(one_line(f"the option {name} must be a number, not {value!r:.40}"))
    if OPTION_TYPES[name] is int:
        return int(value)
    return 0.0 if abs(value) < _SMALLEST else value


def _stops(value: Any) -> tuple[str, ...]:
    stops = (value,) if isinstance(value, str) else value
    if not isinstance(stops, list | tuple) or not all(isinstance(stop, str) for stop in stops):
        raise UsageError(one_line(f"the option stop must be a list of texts, not {value!r:.40}"))
    return tuple(stops)


def sampler_obstacle(options: SamplingOptions) -> str | None:
    """Why a reply under these options can't be computed here, though a server takes them as they are; None if it can.

    llama.cpp divides positive logits by repeat_penalty: by 0 they become infinite, and what it draws then isn't
    defined. llama-server refuses a repeat_last_n below -1 in its own words.
    """
    if names := options.not_rebuilt:
        return f"{names[0]} is set, which only a server's sampler works with"
    if options.penalised and abs(options.repeat_penalty) < _LEAST_PENALTY:
        return f"repeat_penalty is {options.repeat_penalty:g}"
    return f"repeat_last_n is {options.repeat_last_n}" if options.repeat_last_n < -1 else None
