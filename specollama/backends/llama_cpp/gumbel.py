"""Gumbel noise by seed, position and token, and sampling from a whole vocabulary with it.

The sampled token is the one with the largest log p + noise (the Gumbel-max trick:
Gumbel 1954; Maddison et al. 2014, section 2).
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

Logits = NDArray[np.float32]
Tokens = NDArray[np.int64]
Weights = NDArray[np.float64]

BLOCK = 128  # tokens; the maximum of each block shows which few blocks have to be searched
_FIRST = 64  # tokens whose noise is computed first; all others have to beat the best of these
_BITS = 52  # bits of the uniform number from which a token's noise is computed
_LARGEST = 36.8  # no token's noise is larger: -log(-log(1 - 2**-53)) is 36.74


def gumbel_noise(seed: int, position: int, tokens: Tokens) -> Weights:
    """Standard Gumbel noise for each of `tokens` at `position`, shape (len(tokens),).

    The values are independent of each other, and the same for the same seed, position and token. `position` may be
    negative: a draft model with another tokenizer may need fewer tokens for the same text.
    """
    uniform = (_noise_bits(seed, position, tokens).astype(np.float64) + 0.5) / 2.0**_BITS
    return np.asarray(-np.log(-np.log(uniform)))


def best_with_noise(scores: Logits, temperature: float, seed: int, position: int) -> int:
    """The token with the largest score / temperature + noise, over a whole vocabulary.

    `scores` are raw logits, shape (vocabulary,). The noise of most tokens isn't computed. To win, a token needs noise
    of a certain size, so its uniform number must exceed a bound; most numbers don't, and need no logarithm.
    """
    likely = top_tokens(scores, _FIRST)
    values = scores[likely].astype(np.float64) / temperature + gumbel_noise(seed, position, likely)
    rivals = _able_to_win(scores, temperature, float(values.max()), seed, position)
    if len(rivals):
        others = scores[rivals].astype(np.float64) / temperature + gumbel_noise(seed, position, rivals)
        likely, values = np.concatenate([likely, rivals]), np.concatenate([values, others])
    return int(likely[np.argmax(values)])


def top_tokens(scores: Logits, count: int) -> Tokens:
    """The `count` tokens with the largest scores, largest first; ties go to the lower token id.

    They lie in the `count` blocks with the largest maxima, so only those blocks are searched.
    """
    candidates = _best_blocks(scores, count)
    values = scores[candidates]
    if count < len(values):
        least = np.partition(values, len(values) - count)[len(values) - count]
        above = np.flatnonzero(values > least)
        tied = np.flatnonzero(values == least)[: count - len(above)]
        chosen = np.concatenate([above, tied])
        candidates, values = candidates[chosen], values[chosen]
    return np.asarray(candidates[np.lexsort((candidates, -values))], dtype=np.int64)


def _best_blocks(scores: Logits, count: int) -> Tokens:
    """All tokens of the `count` blocks with the largest maxima, and of those that tie with them."""
    maxima = _block_maxima(scores)
    if count >= len(maxima):
        return np.arange(len(scores))
    least = np.partition(maxima, len(maxima) - count)[len(maxima) - count]
    return _tokens_of(np.flatnonzero(maxima >= least), len(scores))


def _able_to_win(scores: Logits, temperature: float, best: float, seed: int, position: int) -> Tokens:
    """The tokens whose score plus noise may reach `best`, judged by the maximum score of their block."""
    needed = best - _block_maxima(scores).astype(np.float64) / temperature
    blocks = np.flatnonzero(needed < _LARGEST)
    tokens = _tokens_of(blocks, len(scores))
    # The noise is at least g where the uniform number is at least exp(-exp(-g)); 1 minus that keeps its digits.
    missing = -np.expm1(-np.exp(-needed[blocks]))
    bounds = np.maximum(0, np.floor((1 - missing) * 2.0**_BITS) - 2).astype(np.uint64)
    sizes = np.minimum((blocks + 1) * BLOCK, len(scores)) - blocks * BLOCK
    return tokens[_noise_bits(seed, position, tokens) >= np.repeat(bounds, sizes)]


def _block_maxima(scores: Logits) -> Logits:
    return np.asarray(np.maximum.reduceat(scores, np.arange(0, len(scores), BLOCK)))


def _tokens_of(blocks: NDArray[np.intp], size: int) -> Tokens:
    """The ids of the tokens in these blocks, in rising order. `size`: tokens of the vocabulary."""
    tokens = (blocks[:, None] * BLOCK + np.arange(BLOCK)).ravel()
    return np.asarray(tokens[: np.searchsorted(tokens, size)], dtype=np.int64)


def _noise_bits(seed: int, position: int, tokens: Tokens) -> NDArray[np.uint64]:
    """A uniform integer below 2**52 for each token."""
    with np.errstate(over="ignore"):
        start = _mix_bits(np.uint64(seed % 2**64) + np.uint64(position % 2**64) * np.uint64(0x9E3779B97F4A7C15))
        bits = _mix_bits(_mix_bits(start ^ tokens.astype(np.uint64)) + np.uint64(0x9E3779B97F4A7C15))
    return np.asarray(bits >> np.uint64(64 - _BITS), dtype=np.uint64)


def _mix_bits(bits: NDArray[np.uint64] | np.uint64) -> NDArray[np.uint64]:
    """The finaliser of splitmix64 (Steele, Lea and Flood 2014): a bijection that mixes all bits."""
    bits = (bits ^ (bits >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    bits = (bits ^ (bits >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return np.asarray(bits ^ (bits >> np.uint64(31)), dtype=np.uint64)
