"""The target's sampler over a whole vocabulary, in llama.cpp's order, with noise by position.

A draw is the best of log p + Gumbel noise (the Gumbel-max trick: Gumbel 1954; Maddison et al. 2014, section 2), the
noise a function of seed, position and token alone. So the token at a place is the same whether it was drafted there or
not, and a draft model that draws with the same noise tends to draw the same token.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from specollama.errors import RunError
from specollama.spec_decode.types import SamplingOptions

Logits = NDArray[np.float32]
Tokens = NDArray[np.int64]
Weights = NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class Sampler:
    """How tokens are drawn: `options` at their effective value, `seed` the base of the noise."""

    options: SamplingOptions
    seed: int

    def draw(self, logits: Logits, before: Sequence[int], position: int) -> int:
        """The token at a place, by its row of raw logits and all tokens before it (for penalties)."""
        options = self.options
        if options.greedy:
            return int(np.argmax(apply_penalties(logits, before, options)))
        tokens, probabilities = self.distribution(logits, before)
        with np.errstate(divide="ignore"):  # at a low temperature the others' probabilities are 0
            return int(tokens[np.argmax(np.log(probabilities) + gumbel_noise(self.seed, position, tokens))])

    def distribution(self, logits: Logits, before: Sequence[int]) -> tuple[Tokens, Weights]:
        """The tokens that may be drawn, most probable first, and their probabilities, adding up to 1.

        Raises RunError where the logits, or what penalties made of them, aren't numbers.
        """
        options = self.options
        row = apply_penalties(logits, before, options)
        if options.greedy:
            return np.array([np.argmax(row)]), np.ones(1)
        tokens = _most_probable(row, options.top_k)
        kept = np.asarray(row, dtype=np.float64)[tokens]
        for cut in (_typical, _top_p, _min_p):
            chosen = cut(_softmax(kept), options)
            tokens, kept = tokens[chosen], kept[chosen]
        with np.errstate(over="ignore"):  # near temperature 0 all but the best are infinitely far below it
            probabilities = _softmax((kept - kept.max()) / options.temperature)
        if not probabilities[0] > 0:
            raise RunError("there is no token to draw: the logits aren't numbers, or the penalties are too large")
        return tokens, probabilities


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
    row, found = logits.copy(), logits[tokens]
    repeated = np.where(found <= 0, found * options.repeat_penalty, found / options.repeat_penalty)
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


def gumbel_noise(seed: int, position: int, tokens: Tokens) -> Weights:
    """Standard Gumbel noise for tokens at a place: independent of each other, always the same for the same three.

    A draft model with another tokenizer counts its places otherwise, from below 0 where it needs fewer tokens.
    """
    with np.errstate(over="ignore"):
        start = _mix_bits(np.uint64(seed % 2**64) + np.uint64(position % 2**64) * np.uint64(0x9E3779B97F4A7C15))
        bits = _mix_bits(_mix_bits(start ^ tokens.astype(np.uint64)) + np.uint64(0x9E3779B97F4A7C15))
    uniform = ((bits >> np.uint64(12)).astype(np.float64) + 0.5) / 2.0**52
    return np.asarray(-np.log(-np.log(uniform)))


def _mix_bits(bits: NDArray[np.uint64] | np.uint64) -> NDArray[np.uint64]:
    """The finaliser of splitmix64 (Steele, Lea and Flood 2014): a bijection in which each bit moves all."""
    bits = (bits ^ (bits >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    bits = (bits ^ (bits >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return np.asarray(bits ^ (bits >> np.uint64(31)), dtype=np.uint64)


def _most_probable(row: Logits, top_k: int) -> Tokens:
    """The best tokens, most probable first; of equal ones that with the lower number."""
    if 0 < top_k < len(row):
        least = np.partition(row, len(row) - top_k)[len(row) - top_k]
        above = np.flatnonzero(row > least)
        tied = np.flatnonzero(row == least)[: top_k - len(above)]
        tokens = np.concatenate([above, tied])
    else:
        tokens = np.arange(len(row))
    return np.asarray(tokens[np.argsort(-row[tokens], kind="stable")], dtype=np.int64)


def _softmax(logits: Weights) -> Weights:
    weights = np.exp(logits - logits.max())
    return np.asarray(weights / weights.sum())


def _typical(probabilities: Weights, options: SamplingOptions) -> Tokens:
    """Locally typical sampling (Meister et al. 2022): the entries nearest to the entropy that reach the mass."""
    if options.typical_p >= 1:
        return np.arange(len(probabilities))
    information = -np.log(np.maximum(probabilities, 1e-300))
    distance = np.abs(information - (probabilities * information).sum())
    order = np.argsort(distance, kind="stable")
    reached = int(np.searchsorted(np.cumsum(probabilities[order]), options.typical_p, side="right")) + 1
    return np.sort(order[:reached])


def _top_p(probabilities: Weights, options: SamplingOptions) -> Tokens:
    """The first entries that together reach top_p."""
    if options.top_p >= 1:
        return np.arange(len(probabilities))
    return np.arange(max(1, min(len(probabilities), int(np.searchsorted(np.cumsum(probabilities), options.top_p)) + 1)))


def _min_p(probabilities: Weights, options: SamplingOptions) -> Tokens:
    """The entries that have at least that share of the best one's probability."""
    if options.min_p <= 0:
        return np.arange(len(probabilities))
    if options.min_p > 1:  # llama.cpp then keeps one, whatever ties with it
        return np.arange(1)
    return np.flatnonzero(probabilities >= options.min_p * probabilities.max())
