"""Pairs among the installed models: which can work, in which order, and which drafts are worth a pull."""

from __future__ import annotations

from dataclasses import replace

import pytest

from specollama.tools.doctor.model_families import FAMILIES, family_of
from specollama.tools.doctor.suggestions import (
    InstalledModel,
    PullSuggestion,
    best_of_each,
    billions,
    candidates,
    make_suggestion,
    suggest_pulls,
)

QWEN = ("gpt2", "qwen2", 151643, 151645, False)
LLAMA = ("gpt2", "llama-bpe", 128000, 128009, None)


def model(
    name: str, gigabytes: float, size: float | None = None, tokenizer: tuple[object, ...] = QWEN
) -> InstalledModel:
    return InstalledModel(name, "here", "http://here", int(gigabytes * 1e9), size, tokenizer)


BIG, MIDDLE, SMALL = model("qwen2.5:32b", 20, 32.8), model("qwen2.5:7b", 4.7, 7.6), model("qwen2.5:0.5b", 0.4, 0.49)


def names(*models: InstalledModel) -> list[tuple[str, str]]:
    return [(pair.target.name, pair.draft.name) for pair in candidates(models)]


def test_a_draft_has_the_targets_tokenizer_and_a_third_of_its_size() -> None:
    assert names(MIDDLE, SMALL) == [("qwen2.5:7b", "qwen2.5:0.5b")]
    assert names(MIDDLE, replace(SMALL, tokenizer=LLAMA)) == []
    assert names(MIDDLE, replace(SMALL, size=int(2.4e9))) == []
    assert names(MIDDLE, replace(SMALL, completes=False)) == [], "a model for embeddings, say"


def test_what_gains_most_comes_first() -> None:
    assert names(SMALL, BIG, MIDDLE) == [
        ("qwen2.5:32b", "qwen2.5:0.5b"),
        ("qwen2.5:7b", "qwen2.5:0.5b"),
        ("qwen2.5:32b", "qwen2.5:7b"),
    ]
    pairs = candidates([SMALL, BIG, MIDDLE])
    assert [pair.speedup for pair in pairs] == sorted((pair.speedup for pair in pairs), reverse=True)
    assert [pair.draft for pair in best_of_each(pairs)] == [SMALL, SMALL]


def test_another_tokenizer_is_expected_to_gain_less() -> None:
    assert make_suggestion(BIG, SMALL, same=False).speedup < make_suggestion(BIG, SMALL).speedup


def test_a_pair_is_called_after_its_target() -> None:
    assert make_suggestion(model("qwen2.5:latest", 1), SMALL).name == "qwen2.5"
    assert make_suggestion(model("hf.co/User/Repo:Q4_K_M", 1), SMALL).name == "hf.co-User-Repo-Q4_K_M"


def test_a_family_with_a_small_member_is_worth_a_pull() -> None:
    assert list(suggest_pulls([BIG], [])) == [PullSuggestion("qwen2.5:32b", "qwen2.5:0.5b", True, "http://here")]
    installed = [BIG, MIDDLE]
    [for_big, for_middle] = suggest_pulls(installed, candidates(installed))
    assert for_big == PullSuggestion("qwen2.5:32b", "qwen2.5:0.5b", True, "http://here", better="qwen2.5:7b")
    assert for_middle.target == "qwen2.5:7b"
    assert list(suggest_pulls([BIG, SMALL], candidates([BIG, SMALL]))) == [], "it is there"


@pytest.mark.parametrize(
    ("name", "size", "draft"),
    [
        ("qwen2.5-coder:32b", 32.8, "qwen2.5-coder:0.5b"),
        ("library/qwen3:8b", 8.2, "qwen3:0.6b"),
        ("llama3.3:70b-instruct-q4_K_M", 70.6, "llama3.2:1b"),
        ("Gemma3:27b", 27.4, "gemma3:270m"),
        ("qwen2.5", None, "qwen2.5:0.5b"),
        ("qwen2.5:0.5b", 0.49, None),
        ("llama3.2:3b", 3.2, None),
        ("mistral", 7.2, None),
        ("someone/qwen2.5:32b", 32.8, None),
        ("hf.co/user/qwen2.5", 32.8, None),
    ],
)
def test_the_family_is_known_by_the_librarys_name(name: str, size: float | None, draft: str | None) -> None:
    family = family_of(name, size)
    assert (family.draft if family else None) == draft


def test_each_family_drafts_with_one_of_its_own() -> None:
    for family in FAMILIES:
        assert family.billions > 0
        assert family_of(family.draft, family.billions) is None, "it is too small to be drafted for"


@pytest.mark.parametrize(
    ("text", "number"), [("494.03M", 0.49403), ("7.6B", 7.6), ("1T", 1000.0), ("", None), ("large", None)]
)
def test_how_many_parameters(text: str, number: float | None) -> None:
    assert billions(text) == (None if number is None else pytest.approx(number))
