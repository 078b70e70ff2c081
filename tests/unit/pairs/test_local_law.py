"""Route local draws as the target alone does: exactly, every reply of made-up pairs written out.

No statistics: the probability of each reply is computed for the pair and for the target alone, and compared.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from random import Random

import pytest

from specollama.spec_decode import acceptance
from specollama.spec_decode.types import AcceptanceMethod, SamplingOptions
from tests.support.made_up import END, Follow, Lookahead, Side, Vocabulary, distance, exact, law_of, replies_by_seed

pytestmark = pytest.mark.no_cover  # thousands of replies that run nothing the other tests don't

EQUAL = 1e-6  # what 32-bit logits leave of a difference of 0
PLAIN = SamplingOptions(temperature=1.0, top_k=0, top_p=1.0, num_predict=3)
LOOKAHEADS = [1, 2, (2, 0), (1, 2), "auto"]


def target_cost(tokens: int) -> float:
    return 1 + 0.05 * (tokens - 1)


def draft_cost(tokens: int) -> float:
    return 0.02


@dataclass(frozen=True)
class Scene:
    """A target, what the draft model says, and the draft model's own tokens where it has others."""

    tokens: Vocabulary
    target: Follow
    draft: Follow
    other: Vocabulary
    options: SamplingOptions = PLAIN

    @property
    def alone(self) -> Side:
        return Side(self.tokens, self.target, target_cost)

    def draft_of(self, tokenizer: str) -> Side:
        return Side(self.tokens if tokenizer == "same" else self.other, self.draft, draft_cost)


SCENES = {
    "letters": Scene(
        Vocabulary(".", "a", "b", "ab", END),
        {"a": {"a": 0.5, "b": 0.3, END: 0.2}, "": {"a": 0.6, "b": 0.4}},
        {"a": {"a": 0.2, "b": 0.7, END: 0.1}, "": {"a": 0.3, "b": 0.7}},
        Vocabulary(".", "b", "a", END),  # "a" and "b" are one token for the target
    ),
    "words that only one of them has": Scene(
        Vocabulary(".", "a", "b", "ab", END),
        {"a": {"a": 0.5, "b": 0.25, "ab": 0.25}, "": {"a": 0.5, "ab": 0.2, "b": 0.3}},
        {"a": {"a": 0.2, "b": 0.8}, "": {"a": 0.3, "b": 0.7}},
        Vocabulary(".", "b", "a", "ba", END),
    ),
    "characters of several tokens": Scene(
        Vocabulary(".", "a", b"\xc3", b"\xa9", b"\xb1", END),  # é and ñ have the same first part
        {b"\xc3": {b"\xa9": 0.7, b"\xb1": 0.3}, "a": {"a": 0.5, b"\xc3": 0.3, END: 0.2}, "": {"a": 0.6, b"\xc3": 0.4}},
        {b"\xc3": {b"\xa9": 0.2, b"\xb1": 0.8}, "a": {"a": 0.2, b"\xc3": 0.8}, "": {"a": 0.7, b"\xc3": 0.3}},
        Vocabulary("a", ".", b"\xc3", b"\xa9", b"\xb1", END),
    ),
    "twins": Scene(
        Vocabulary(".", "a", "a'", "b", END),  # what follows tells the two apart
        {"a": {"b": 0.8, "a'": 0.2}, "a'": {"b": 0.1, "a": 0.9}, "": {"a": 0.3, "a'": 0.3, "b": 0.4}},
        {"a": {"b": 0.5, "a": 0.5}, "a'": {"b": 0.4, "a'": 0.6}, "": {"a": 0.5, "a'": 0.1, "b": 0.4}},
        Vocabulary("a", ".", "a'", "b", END),
    ),
    "penalties and cuts": Scene(
        Vocabulary(".", "a", "b", "c", END),
        {"a": {"a": 0.5, "b": 0.3, "c": 0.2}, "": {"a": 0.4, "b": 0.35, "c": 0.25}},
        {"a": {"a": 0.2, "b": 0.7, "c": 0.1}, "": {"a": 0.1, "b": 0.5, "c": 0.4}},
        Vocabulary("c", ".", "a", "b", END),
        SamplingOptions(temperature=0.8, top_k=2, top_p=0.95, repeat_penalty=1.3, presence_penalty=0.2, num_predict=3),
    ),
}


async def law_in(
    scene: Scene, rule: AcceptanceMethod, lookahead: Lookahead, tokenizer: str, *, lookup: bool = False
) -> float:
    """How far the pair's law is from the target's."""
    ours = await law_of(scene.alone, scene.draft_of(tokenizer), scene.options, rule, lookahead, lookup=lookup)
    assert sum(ours.values()) == pytest.approx(1)
    return distance(ours, exact(scene.alone, scene.options))


@pytest.mark.parametrize("name", SCENES)
@pytest.mark.parametrize("tokenizer", ["same", "other"])
@pytest.mark.parametrize("lookahead", LOOKAHEADS, ids=str)
@pytest.mark.parametrize("rule", [AcceptanceMethod.REJECTION, AcceptanceMethod.MATCH])
async def test_each_reply_has_the_probability_that_the_target_gives_it(
    name: str, tokenizer: str, lookahead: Lookahead, rule: AcceptanceMethod
) -> None:
    assert await law_in(SCENES[name], rule, lookahead, tokenizer) < EQUAL


@pytest.mark.parametrize("name", ["letters", "characters of several tokens", "twins"])
@pytest.mark.parametrize("rule", [AcceptanceMethod.REJECTION, AcceptanceMethod.MATCH])
async def test_lookup_beside_a_draft_model_leaves_the_probabilities_as_they_are(
    name: str, rule: AcceptanceMethod
) -> None:
    assert await law_in(SCENES[name], rule, "auto", "same", lookup=True) < EQUAL
    assert await law_in(SCENES[name], rule, 2, "same", lookup=True) < EQUAL


LEARNING = Scene(
    Vocabulary(".", *"abcdefg", END),
    {
        ".": {"c": 1},
        "c": {"a": 0.5, "b": 0.5},
        "a": {"d": 0.165, "e": 0.835},
        "b": {"d": 0.165, "e": 0.835},
        "": {"f": 1},
    },
    {".": {"c": 1}, "c": {"a": 0.99, "b": 0.01}, "a": {"d": 0.99, "e": 0.01}, "b": {"d": 0.99, "e": 0.01}}
    | {"e": {"f": 0.5, "g": 0.5}, "": {"f": 1}},
    Vocabulary(*"gfedcba.", END),
    SamplingOptions(temperature=4.0, top_k=0, top_p=1.0, num_predict=5),
)
"""With the costs below the planner drafts once more only after it was sure of the third token that it discarded."""


@pytest.mark.parametrize("tokenizer", ["same", "other"])
async def test_what_the_planner_learns_from_discarded_tokens_chooses_none_of_those_drafted_anew(tokenizer: str) -> None:
    target = Side(LEARNING.tokens, LEARNING.target, lambda tokens: 1 + 0.53 * (tokens - 1))
    draft = replace(LEARNING.draft_of(tokenizer), cost=lambda tokens: 0.4)
    ours = await law_of(target, draft, LEARNING.options, AcceptanceMethod.REJECTION, "auto", acceptance=0.95)
    assert distance(ours, exact(target, LEARNING.options)) < EQUAL


async def test_the_law_tells_a_draft_that_is_taken_as_it_comes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(acceptance, "accepts", lambda token, p, q, random: True)
    for tokenizer in ("same", "other"):
        assert await law_in(SCENES["letters"], AcceptanceMethod.REJECTION, 2, tokenizer) > 0.1


async def test_the_law_tells_a_token_that_is_recovered_from_the_target_as_a_whole(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(acceptance, "residual", lambda p, q: p)
    for tokenizer in ("same", "other"):
        assert await law_in(SCENES["letters"], AcceptanceMethod.REJECTION, 2, tokenizer) > 0.05


@pytest.mark.parametrize("name", SCENES)
@pytest.mark.parametrize("tokenizer", ["same", "other"])
async def test_with_a_seed_the_reply_is_that_of_the_plain_stream(name: str, tokenizer: str) -> None:
    """Rows, characters that are finished and the plain stream draw the same token at the same place."""
    scene = SCENES[name]
    options = replace(scene.options, num_predict=8)
    seeds = [Random(name).randrange(2**31) + number for number in range(20)]
    plain, *others = [
        await replies_by_seed(scene.alone, scene.draft_of(tokenizer), options, lookahead, seeds)
        for lookahead in (None, 0, 1, 3, "auto")
    ]
    assert len(set(plain)) > 3
    for replies in others:
        assert replies == plain
