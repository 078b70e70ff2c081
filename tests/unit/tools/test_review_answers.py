"""Which seed an item of a run is asked with: the same after a crash as without one, another for each attempt."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

from specollama.config.settings import FileRef, PairSettings
from specollama.spec_decode.types import AcceptanceMethod
from specollama.tools.review.answering import seed_for, seed_of
from specollama.tools.review.prompts import BatchItem

SETTINGS = PairSettings(None, FileRef(Path("target.gguf")), ())


def asked(id: str = "a", **options: Any) -> BatchItem:
    return BatchItem(id, [], options, {})


def test_each_item_and_each_attempt_has_a_seed_of_its_own_that_stays() -> None:
    seeds = {(run, id, attempt): seed_of(run, id, attempt) for run in (1, 2) for id in "abc" for attempt in range(1, 9)}
    assert len(set(seeds.values())) == len(seeds)
    assert all(0 <= seed < 2**31 for seed in seeds.values())
    assert seeds == {place: seed_of(*place) for place in seeds}


def test_at_first_an_item_is_asked_with_its_own_seed_or_the_pairs_and_then_with_others() -> None:
    pair = replace(SETTINGS, options={"seed": 5})
    assert seed_for(pair, asked(seed=3), 1, 1) == 3
    assert seed_for(pair, asked(), 1, 1) == 5
    assert seed_for(pair, asked(seed=0), 1, 1) == 0
    assert seed_for(SETTINGS, asked(), 1, 1) == seed_of(1, "a", 1)
    again = [seed_for(pair, asked(seed=3), 1, attempt) for attempt in (2, 3)]
    assert again == [seed_of(1, "a", 2), seed_of(1, "a", 3)]


def test_by_rejection_no_seed_is_made_up() -> None:
    pair = replace(SETTINGS, rule=AcceptanceMethod.REJECTION)
    assert seed_for(pair, asked(), 1, 1) is None
    assert seed_for(pair, asked(seed=3), 1, 2) is None
    assert seed_for(pair, asked(seed=3), 1, 1) == 3
