"""The target's sampler over a whole vocabulary: llama.cpp's filters in llama.cpp's order, with noise by position.

The sampler picks the token with the largest log p + Gumbel noise. The noise depends on seed, position and token alone
(see `gumbel`). So the token at a place is the same whether or not it was drafted, and a draft model that uses the same
noise tends to sample the same token.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from specollama.backends.llama_cpp.gumbel import Logits, Tokens, Weights, best_with_noise, gumbel_noise, top_tokens
from specollama.errors import RunError
from specollama.spec_decode.types import SamplingOptions

Filter = Callable[[Weights, SamplingOptions], Tokens]

_FIRST_GUESS = 64  # tokens; how many top tokens `_nucleus` tries first
_MARGIN = 1e-3  # logits; tokens this near to the bound stay on the shortlist, and `_min_p` decides about them


@dataclass(frozen=True, slots=True)
class Sampler:
    """Samples tokens. `options` hold effective values (defaults filled in); `seed` seeds the noise."""

    options: SamplingOptions
    seed: int

    def draw(self, logits: Logits, before: Sequence[int], position: int) -> int:
        """Sample the token at `position`.

        `logits`: raw, shape (vocabulary,). `before`: all earlier tokens, for penalties.

        Raises RunError when the logits aren't finite, before or after penalties.
        """
        options = self.options
        row = apply_penalties(logits, before, options)
        if options.greedy:
            return int(np.argmax(row))
        if _keeps_all(options, len(row)):
            return best_with_noise(_checked(row), options.temperature, self.seed, position)
        tokens, probabilities = _distribution(row, options)
        with np.errstate(divide="ignore"):  # at a low temperature all probabilities but the largest underflow to 0
            return int(tokens[np.argmax(np.log(probabilities) + gumbel_noise(self.seed, position, tokens))])

    def distribution(self, logits: Logits, before: Sequence[int]) -> tuple[Tokens, Weights]:
        """The tokens that may be sampled, most probable first, and their probabilities, which add up to 1.

        Raises RunError when the logits aren't finite, before or after penalties.
        """
        row = apply_penalties(logits, before, self.options)
        if self.options.greedy:
            return np.array([np.argmax(row)]), np.ones(1)
        return _distribution(row, self.options)


def _distribution(row: Logits, options: SamplingOptions) -> tuple[Tokens, Weights]:
    tokens, filters = _shortlist(_checked(row), options)
    logits = row[tokens].astype(np.float64)
    for keep in filters:
        chosen = keep(_softmax(logits), options)
        tokens, logits = tokens[chosen], logits[chosen]
    with np.errstate(over="ignore"):  # near temperature 0 all but the best become -inf
        return tokens, _softmax((logits - logits.max()) / options.temperature)


def _shortlist(row: Logits, options: SamplingOptions) -> tuple[Tokens, tuple[Filter, ...]]:
    """The tokens that pass the first filters, most probable first, and the filters still to apply.

    Sorting a whole vocabulary takes ten times as long as finding the few tokens that pass most options' filters.
    """
    every = (_typical, _top_p, _min_p)
    if 0 < options.top_k < len(row):
        return top_tokens(row, options.top_k), every
    if options.typical_p >= 1 and options.top_p < 1:
        return _nucleus(row, options.top_p), (_min_p,)
    if options.typical_p >= 1 and options.min_p > 0:
        above = np.flatnonzero(row >= row.max() + np.log(min(1.0, options.min_p)) - _MARGIN)
        return above[np.argsort(-row[above], kind="stable")], (_min_p,)
    return top_tokens(row, len(row)), every


def _nucleus(row: Logits, top_p: float) -> Tokens:
    """The most probable tokens that together reach `top_p` of the whole vocabulary's mass, most probable first."""
    weights = np.exp(row - row.max())
    goal, count = top_p * float(weights.sum(dtype=np.float64)), _FIRST_GUESS
    while True:
        tokens = top_tokens(row, count)
        reached = np.cumsum(weights[tokens], dtype=np.float64)
        if reached[-1] >= goal or count >= len(row):
            return tokens[: int(np.searchsorted(reached, goal)) + 1]
        count *= 8


def _checked(row: Logits) -> Logits:
    """The row itself. Raises RunError when its largest logit isn't finite."""
    if not np.isfinite(row.max()):
        raise RunError("there is no token to draw: the logits aren't numbers, or the penalties are too large")
    return row


def _keeps_all(options: SamplingOptions, size: int) -> bool:
    """Whether no filter removes a token."""
    unfiltered = options.typical_p >= 1 and options.top_p >= 1 and options.min_p <= 0
    return unfiltered and not 0 < options.top_k < size


def apply_penalties(logits: Logits, before: Sequence[int], options: SamplingOptions) -> Logits:
    """The logits after penalties over the last `repeat_last_n` tokens (-1: all), as llama.cpp computes them."""
    if not options.penalised:
        return logits
    window = before if options.repeat_last_n < 0 else before[-options.repeat_last_n :]
    counts = Counter(window)
    if not counts:
        return logits
    tokens = np.fromiter(counts.keys(), dtype=np.int64)
    times = np.fromiter(counts.values(), dtype=np.float32)
    row, values = logits.copy(), logits[tokens]
    repeated = np.where(values <= 0, values * options.repeat_penalty, values / options.repeat_penalty)
    row[tokens] = repeated - times * options.frequency_penalty - options.presence_penalty
    return row


def top_token_and_probability(logits: Logits) -> tuple[int, float]:
    """The best token of a row and its probability: the softmax of the raw logits."""
    best = int(np.argmax(logits))
    return best, float(1 / np.exp(logits - logits[best]).sum(dtype=np.float64))


def log_probability(logits: Logits, tokens: Sequence[int]) -> list[float]:
    """The natural logarithm of the softmax of the raw logits at these tokens."""
    best = float(logits.max())
    total = float(np.log(np.exp(logits - np.float32(best)).sum(dtype=np.float64)))
    return [float(logits[token]) - best - total for token in tokens]


def _softmax(logits: Weights) -> Weights:
    weights = np.exp(logits - logits.max())
    return np.asarray(weights / weights.sum())


def _typical(probabilities: Weights, options: SamplingOptions) -> Tokens:
    """Locally typical sampling (Meister et al. 2022): the entries nearest to the entropy, up to a mass of typical_p."""
    if options.typical_p >= 1:
        return np.arange(len(probabilities))
    information = -np.log(np.maximum(probabilities, 1e-300))
    distance = np.abs(information - (probabilities * information).sum())
    order = np.argsort(distance, kind="stable")
    reached = int(np.searchsorted(np.cumsum(probabilities[order]), options.typical_p, side="right")) + 1
    return np.sort(order[:reached])


def _top_p(probabilities: Weights, options: SamplingOptions) -> Tokens:
    """The fewest first entries whose probabilities add up to top_p or more."""
    if options.top_p >= 1:
        return np.arange(len(probabilities))
    return np.arange(max(1, min(len(probabilities), int(np.searchsorted(np.cumsum(probabilities), options.top_p)) + 1)))


def _min_p(probabilities: Weights, options: SamplingOptions) -> Tokens:
    """The entries with a probability of at least min_p times the largest one."""
    if options.min_p <= 0:
        return np.arange(len(probabilities))
    if options.min_p > 1:  # llama.cpp then keeps one token, even if others tie with it
        return np.arange(1)
    return np.flatnonzero(probabilities >= options.min_p * probabilities.max())
