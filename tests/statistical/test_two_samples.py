"""The two-sample test itself, on samples whose distribution is known."""

from __future__ import annotations

from collections import Counter
from random import Random

import pytest

from tests.support.two_samples import departure, pooled

FAIR = {"aa": 0.3, "ab": 0.3, "ba": 0.25, "bb": 0.15}
LOADED = {"aa": 0.36, "ab": 0.24, "ba": 0.25, "bb": 0.15}


def sample(random: Random, weights: dict[str, float], draws: int) -> Counter[str]:
    return Counter(random.choices(list(weights), list(weights.values()), k=draws))


def test_the_statistic_is_pearsons() -> None:
    found = departure([Counter(a=30, b=70)], [Counter(a=50, b=50)])
    assert found.statistic == pytest.approx(8.3333, abs=1e-4)  # as textbooks give it for this table
    assert found.freedom == 1
    assert found.p_value == pytest.approx(0.003892, abs=1e-6)


def test_samples_of_one_distribution_fail_as_often_as_the_test_says() -> None:
    random = Random(1)
    found = [departure([sample(random, FAIR, 300)], [sample(random, FAIR, 500)]).p_value for _ in range(1000)]
    assert sum(p < 0.05 for p in found) == pytest.approx(50, abs=25)
    assert sum(p < 0.5 for p in found) == pytest.approx(500, abs=60)


def test_several_pairs_of_samples_make_one_test() -> None:
    random = Random(2)
    ours = [sample(random, weights, 1000) for weights in (FAIR, LOADED)]
    theirs = [sample(random, FAIR, 1000) for _ in ours]
    assert departure(ours[:1], theirs[:1]).p_value > 0.001
    assert departure(ours, theirs).p_value < departure(ours[:1], theirs[:1]).p_value
    assert departure(ours, theirs).freedom == 6


def test_rare_texts_are_counted_with_those_that_begin_like_them() -> None:
    counts = Counter({"xa": 20, "xb": 4, "xc": 7, "ya": 30, "z": 3, "w": 2})
    assert set(pooled(counts, 10)) == {
        frozenset({"xa"}),
        frozenset({"xb", "xc", "w", "z"}),
        frozenset({"ya"}),
    }


@pytest.mark.parametrize("counts", [Counter(a=3), Counter(a=3, b=3), Counter()])
def test_too_few_draws_are_one_cell(counts: Counter[str]) -> None:
    assert pooled(counts, 10) == [frozenset(counts)]
