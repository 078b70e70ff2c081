"""Writing out every way a random experiment may go."""

from __future__ import annotations

from collections.abc import Mapping

import pytest

from specollama.spec_decode.acceptance import accepts, residual, sample_from
from tests.support.every_draw import Chance, EveryRandom, Uniform, law


async def test_two_coins_have_four_outcomes() -> None:
    async def toss(chance: Chance) -> tuple[int, int]:
        return chance.choose((0.25, 0.75)), chance.choose((0.5, 0.5))

    assert await law(toss) == pytest.approx({(0, 0): 0.125, (0, 1): 0.125, (1, 0): 0.375, (1, 1): 0.375})


async def test_a_number_answers_the_same_question_alike_and_others_in_accord() -> None:
    async def ask(chance: Chance) -> tuple[bool, bool, bool]:
        number = Uniform(chance)
        return number.below(0.5), number.below(0.5), number.below(0.75)

    assert await law(ask) == pytest.approx(
        {(True, True, True): 0.5, (False, False, True): 0.25, (False, False, False): 0.25}
    )


async def test_the_acceptance_rules_are_written_out_exactly() -> None:
    p, q = {"a": 0.6, "b": 0.4}, {"a": 0.2, "b": 0.8}

    async def settle(chance: Chance) -> str:
        random = EveryRandom(chance)
        drafted = sample_from(q, random)
        return drafted if accepts(drafted, p, q, random) else sample_from(residual(p, q), random)

    assert await law(settle) == pytest.approx(p)


async def test_what_happens_never_isnt_tried() -> None:
    async def choose(chance: Chance) -> int:
        return chance.choose((0.0, 1.0, 0.0))

    assert await law(choose) == {1: 1.0}


async def test_an_experiment_that_is_too_large_is_refused() -> None:
    async def toss(chance: Chance) -> Mapping[str, int] | int:
        return sum(chance.choose((0.5, 0.5)) for _ in range(8))

    with pytest.raises(AssertionError, match="more than 100 runs"):
        await law(toss, most=100)
