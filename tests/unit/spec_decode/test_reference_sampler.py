"""The reference that the sampler is held against, by hand-size examples."""

from __future__ import annotations

import pytest

from specollama.spec_decode.types import SamplingOptions
from tests.support.reference_sampler import sampled

RAW = {"a": 0.5, "b": 0.3, "c": 0.15, "d": 0.05}
WIDE = SamplingOptions(temperature=1, top_k=0, top_p=1)


def options(**changes: float) -> SamplingOptions:
    return SamplingOptions(**{"temperature": 1, "top_k": 0, "top_p": 1, **changes})  # type: ignore[arg-type]


def test_without_cuts_the_raw_probabilities_stay() -> None:
    assert sampled(RAW, WIDE) == pytest.approx(RAW)


def test_temperature_zero_leaves_the_most_probable() -> None:
    assert sampled(RAW, options(temperature=0)) == {"a": 1}


def test_temperature_one_half_squares_the_weights() -> None:
    assert sampled({"a": 0.75, "b": 0.25}, options(temperature=0.5)) == pytest.approx({"a": 0.9, "b": 0.1})


def test_each_cut_keeps_what_its_definition_says() -> None:
    assert sampled(RAW, options(top_k=2)) == pytest.approx({"a": 0.625, "b": 0.375})
    assert sampled(RAW, options(top_p=0.7)) == pytest.approx({"a": 0.625, "b": 0.375})
    assert sampled(RAW, options(top_p=0.81)) == pytest.approx({"a": 10 / 19, "b": 6 / 19, "c": 3 / 19})
    assert sampled(RAW, options(min_p=0.4)) == pytest.approx({"a": 0.625, "b": 0.375})


def test_top_p_counts_what_top_k_left() -> None:
    assert sampled(RAW, options(top_k=2, top_p=0.62)) == {"a": 1}
