"""The sampler over a whole vocabulary: llama.cpp's order, and noise by position."""

from __future__ import annotations

import math
import warnings
from collections import Counter

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from specollama.backends.llama_cpp.gumbel import BLOCK, best_with_noise, gumbel_noise, top_tokens
from specollama.backends.llama_cpp.sampler import (
    Sampler,
    apply_penalties,
    log_probability,
    top_token_and_probability,
)
from specollama.errors import RunError
from specollama.spec_decode.types import SamplingOptions
from tests.support.chi_square import p_value
from tests.support.reference_sampler import sampled

LOGITS = np.array([2.0, 1.0, 0.5, -1.0, -3.0], dtype=np.float32)


def row(*logits: float) -> np.ndarray:
    return np.array(logits, dtype=np.float32)


@given(
    st.lists(st.integers(-40, 40), min_size=1, max_size=12, unique=True),
    st.sampled_from([0, 1, 3, 40]),
    st.sampled_from([0.3, 0.9, 1.0]),
    st.sampled_from([0.0, 0.1, 1.5]),
    st.sampled_from([0.5, 1.0, 1.7]),
)
def test_the_distribution_is_that_of_the_plainest_sampler(
    tenths: list[int], top_k: int, top_p: float, min_p: float, temperature: float
) -> None:
    options = SamplingOptions(temperature=temperature, top_k=top_k, top_p=top_p, min_p=min_p)
    logits = row(*(number / 10 for number in tenths))
    raw = np.exp(logits.astype(float)) / np.exp(logits.astype(float)).sum()
    expected = sampled(dict(enumerate(raw.tolist())), options)
    tokens, probabilities = Sampler(options, 1).distribution(logits, [])
    assert dict(zip(tokens.tolist(), probabilities.tolist(), strict=True)) == pytest.approx(expected, abs=1e-6)


def test_penalties_are_counted_over_the_last_tokens_as_llama_cpp_does() -> None:
    options = SamplingOptions(repeat_penalty=2.0, presence_penalty=0.5, frequency_penalty=0.25, repeat_last_n=3)
    # token 4 lies beyond the window; token 0 occurs twice, token 3 (whose logit is negative) once
    assert apply_penalties(LOGITS, [4, 0, 3, 0], options).tolist() == [
        2 / 2 - 0.5 - 0.5,
        1,
        0.5,
        -1 * 2 - 0.25 - 0.5,
        -3,
    ]
    assert apply_penalties(LOGITS, [0], SamplingOptions()) is LOGITS


def test_the_whole_text_is_looked_back_on_where_repeat_last_n_is_minus_one() -> None:
    options = SamplingOptions(presence_penalty=1.0, repeat_last_n=-1)
    assert apply_penalties(LOGITS, [4, *[1] * 100], options).tolist() == [2, 0, 0.5, -1, -4]


def test_typical_sampling_keeps_what_is_nearest_to_the_entropy() -> None:
    probabilities = np.array([0.5, 0.3, 0.15, 0.05])
    tokens, _ = Sampler(SamplingOptions(typical_p=0.3, top_k=0, top_p=1, temperature=1), 1).distribution(
        np.log(probabilities).astype(np.float32), []
    )
    entropy = -(probabilities * np.log(probabilities)).sum()
    nearest = int(np.argmin(np.abs(-np.log(probabilities) - entropy)))
    assert nearest in tokens
    assert len(tokens) < 4


def test_the_cuts_come_in_llama_cpps_order_typical_then_top_p_then_min_p() -> None:
    """Any other order keeps the first token alone.

    The entropy is 1.60 nats, and the informations are 1.15, 1.26, 1.90, 2.15, 2.30 and 3.40: the third, second and
    first token are the nearest, and reach 0.75. Of that 19/45 is less than 0.5 and 36/45 isn't: two are left. Then
    17/19 is more than half. With min_p before, the third (9/19) would be gone, and 19/36 would reach 0.5 alone.
    """
    weights = np.array([19, 17, 9, 7, 6, 2])
    options = SamplingOptions(temperature=1.0, top_k=0, typical_p=0.5, top_p=0.5, min_p=0.5)
    tokens, probabilities = Sampler(options, 1).distribution(np.log(weights / 60).astype(np.float32), [])
    assert tokens.tolist() == [0, 1]
    assert probabilities.tolist() == pytest.approx([19 / 36, 17 / 36])


@pytest.mark.parametrize(
    ("top_k", "kept"),
    [(1, [3]), (2, [3, 1]), (3, [3, 1, 2]), (4, [3, 1, 2, 5]), (5, [3, 1, 2, 5, 0]), (6, [3, 1, 2, 5, 0, 4])],
)
def test_of_equal_logits_at_top_ks_cut_those_with_the_lower_numbers_stay(top_k: int, kept: list[int]) -> None:
    options = SamplingOptions(temperature=1.0, top_k=top_k, top_p=1.0)
    assert Sampler(options, 1).distribution(row(1, 2, 2, 3, 0, 2), [])[0].tolist() == kept


def test_draws_are_distributed_as_they_should_be() -> None:
    options = SamplingOptions(temperature=1.0, top_k=0, top_p=1.0)
    sampler = Sampler(options, 5)
    drawn = Counter(sampler.draw(LOGITS, [], position) for position in range(20_000))
    weights = np.exp(LOGITS.astype(float))
    assert p_value(drawn, dict(enumerate((weights / weights.sum()).tolist()))) >= 0.001


def test_a_draw_depends_on_seed_and_position_alone() -> None:
    options = SamplingOptions(temperature=1.5)
    first = [Sampler(options, 3).draw(LOGITS, [], position) for position in range(50)]
    assert first == [Sampler(options, 3).draw(LOGITS, [1, 2], position) for position in range(50)]
    assert first != [Sampler(options, 4).draw(LOGITS, [], position) for position in range(50)]


def test_the_noise_of_a_token_is_the_same_whatever_others_are_asked() -> None:
    alone, among = gumbel_noise(1, 2, np.array([7])), gumbel_noise(1, 2, np.array([3, 7, 9]))
    assert alone[0] == among[1]
    assert np.isfinite(gumbel_noise(-5, 0, np.arange(100_000))).all()


def test_at_temperature_zero_the_first_of_equal_ones_is_taken() -> None:
    assert Sampler(SamplingOptions(temperature=0), 1).draw(row(1, 5, 5), [], 0) == 1


def test_at_temperature_zero_penalties_count() -> None:
    options = SamplingOptions(temperature=0, presence_penalty=3.0)
    assert [Sampler(options, 1).draw(row(1, 5, 4), before, 0) for before in ([], [1], [1, 2])] == [1, 2, 1]


def test_probabilities_are_those_of_the_raw_logits() -> None:
    weights = np.exp(LOGITS.astype(float)) / np.exp(LOGITS.astype(float)).sum()
    assert top_token_and_probability(LOGITS) == (0, pytest.approx(weights[0]))
    assert log_probability(LOGITS, [0, 4]) == pytest.approx(np.log(weights[[0, 4]]).tolist(), abs=1e-5)


def test_places_are_drawn_at_from_below_zero_too() -> None:
    """A draft model with another tokenizer may need fewer tokens for the prompt than the target."""
    tokens = np.arange(1000)
    noises = [gumbel_noise(1, position, tokens).tolist() for position in (-2, -1, 0)]
    assert len({tuple(noise) for noise in noises}) == 3


def test_at_a_low_temperature_the_best_token_is_drawn_and_nothing_is_complained_of() -> None:
    options = SamplingOptions(temperature=0.001, top_p=1.0)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert Sampler(options, 1).draw(row(0, 20, 3), [], 0) == 1


@pytest.mark.parametrize("temperature", [1e-310, 1e-45, 1e-3])
def test_however_low_a_temperature_is_probabilities_stay_numbers(temperature: float) -> None:
    options = SamplingOptions(temperature=temperature, top_k=0, top_p=1.0)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        tokens, probabilities = Sampler(options, 1).distribution(row(30, 10, 50, -20), [])
    assert tokens.tolist() == [2, 0, 1, 3]
    assert probabilities.tolist() == [1, 0, 0, 0]


def test_a_min_p_above_one_keeps_one_token_whatever_ties_with_it() -> None:
    for min_p, kept in ((1.0, [1, 2]), (1.5, [1])):
        options = SamplingOptions(temperature=1.0, top_k=0, top_p=1.0, min_p=min_p)
        assert Sampler(options, 1).distribution(row(1, 4, 4), [])[0].tolist() == kept


@pytest.mark.parametrize(
    ("logits", "changes"),
    [
        (row(math.nan, 1, 2), {}),
        (row(math.inf, 1, 2), {}),
        (row(-math.inf, -math.inf, -math.inf), {}),
        (row(3, 1, 2), {"repeat_penalty": 0.0}),
    ],
)
def test_where_no_token_can_be_drawn_it_is_said_in_one_line(logits: np.ndarray, changes: dict[str, float]) -> None:
    options = SamplingOptions(temperature=1.0, top_p=1.0, **changes)  # type: ignore[arg-type]
    with np.errstate(all="ignore"), pytest.raises(RunError, match=r"^there is no token to draw: [^\n]+$"):
        Sampler(options, 1).draw(logits, [0], 0)


def wide_row(seed: int, size: int, ties: bool) -> np.ndarray:
    """Logits over several blocks of tokens, flat or not, with one that stands out; with ties, many share a value."""
    random = np.random.default_rng(seed)
    logits = random.normal(0, random.choice([0.3, 3]), size)
    logits[random.integers(size)] += 6
    return (np.round(logits) if ties else logits).astype(np.float32)


SIZES = [1, BLOCK - 1, BLOCK, 3 * BLOCK + 1, 700]


@given(st.integers(0, 10_000), st.sampled_from(SIZES), st.booleans(), st.sampled_from([1, 5, 40, 700]))
def test_the_best_tokens_are_those_of_a_stable_sort(seed: int, size: int, ties: bool, count: int) -> None:
    logits = wide_row(seed, size, ties)
    assert top_tokens(logits, count).tolist() == np.argsort(-logits, kind="stable")[:count].tolist()


@given(st.integers(0, 10_000), st.sampled_from(SIZES), st.booleans(), st.sampled_from([0.1, 0.8, 1.0, 5.0]))
def test_a_draw_from_all_tokens_is_the_best_sum_of_score_and_noise(
    seed: int, size: int, ties: bool, temperature: float
) -> None:
    logits = wide_row(seed, size, ties)
    sums = logits.astype(np.float64) / temperature + gumbel_noise(seed, 7, np.arange(size))
    assert best_with_noise(logits, temperature, seed, 7) == int(np.argmax(sums))


@given(
    st.integers(0, 10_000),
    st.sampled_from(SIZES),
    st.sampled_from([0, 2, 40]),
    st.sampled_from([0.0, 0.3, 0.9, 1.0]),
    st.sampled_from([0.0, 0.05, 1.0]),
)
def test_short_cuts_over_a_large_vocabulary_keep_the_tokens_of_the_plainest_sampler(
    seed: int, size: int, top_k: int, top_p: float, min_p: float
) -> None:
    logits = wide_row(seed, size, ties=False)
    options = SamplingOptions(temperature=0.8, top_k=top_k, top_p=top_p, min_p=min_p)
    raw = np.exp(logits.astype(float)) / np.exp(logits.astype(float)).sum()
    expected = sampled(dict(enumerate(raw.tolist())), options)
    tokens, probabilities = Sampler(options, 1).distribution(logits, [])
    assert tokens.tolist() == list(expected)
    assert probabilities.tolist() == pytest.approx(list(expected.values()), abs=1e-6)
    drawn = int(tokens[np.argmax(np.log(probabilities) + gumbel_noise(seed, 3, tokens))])
    assert Sampler(options, seed).draw(logits, [], 3) == drawn
