"""Losslessness in distribution: one place exactly, several places by 20,000 replies.

Each chi-square check raises a false alarm in one of a thousand choices of its seeds; they are fixed, and the
checks passed with them.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable
from dataclasses import replace
from functools import partial
from random import Random
from typing import TypeVar

import pytest
from hypothesis import given
from hypothesis import strategies as st

from specollama.backends.scripted import End, Hidden, Outcome, Script, ScriptedDrafter, ScriptedTarget, constant_script
from specollama.spec_decode.acceptance import renormalize_visible, verify
from specollama.spec_decode.sampler_support import restrict_to_shown
from specollama.spec_decode.types import (
    AcceptanceMethod,
    Distribution,
    Draft,
    Origin,
    SamplingOptions,
    TargetRow,
    TargetScores,
    Token,
)
from tests.support.draws import examples
from tests.support.scripted_runs import END, Scene, departure, events, first_tokens, plain, reply, speculation, wild

Value = TypeVar("Value", bound=Hashable)


class Uniforms(Random):
    """Gives these numbers, and no more."""

    def __init__(self, *numbers: float) -> None:
        super().__init__()
        self.left = list(numbers)

    def random(self) -> float:
        return self.left.pop(0)


# one place, exactly


def shares(outcome: Callable[[float], Value], low: float = 0.0, high: float = 1.0 - 2**-53) -> dict[Value, float]:
    """How much of the unit gives each outcome, found by halving; each outcome has one interval to itself."""
    if outcome(low) == outcome(high):
        return {outcome(low): high - low}
    if high - low < 1e-13:
        return {outcome(low): high - low}
    middle = (low + high) / 2
    found = shares(outcome, low, middle)
    for value, share in shares(outcome, middle, high).items():
        found[value] = found.get(value, 0.0) + share
    return found


def judged(token: str, p: Distribution, q: Distribution, *numbers: float) -> tuple[str, Origin]:
    row = TargetRow(Token("the sample is not looked at"), p=p)
    verdict = verify(
        Draft((Token(token),), (q,)), TargetScores({0: row}), AcceptanceMethod.REJECTION, Uniforms(*numbers)
    )
    return verdict.emitted[0].token.text, verdict.emitted[0].origin


def law(p: Distribution, q: Distribution) -> dict[str, float]:
    """With what probability each token is emitted at a place where one was drafted."""
    found: dict[str, float] = {}
    certain_rejection = 1.0 - 2**-53
    for token, weight in q.items():
        if weight == 0:
            continue
        accepted = shares(lambda number, token=token: judged(token, p, q, number, 0.5)[1]).get(Origin.ACCEPTED, 0.0)
        found[token] = found.get(token, 0.0) + weight * accepted
        if accepted < 1 - 1e-9:
            recovered = shares(lambda number, token=token: judged(token, p, q, certain_rejection, number)[0])
            for other, share in recovered.items():
                found[other] = found.get(other, 0.0) + weight * (1 - accepted) * share
    return found


def distributions(alphabet: str) -> st.SearchStrategy[Distribution]:
    weights = st.lists(st.sampled_from([0, 1, 2, 5, 30]), min_size=len(alphabet), max_size=len(alphabet)).filter(any)
    return weights.map(lambda ws: {token: w / sum(ws) for token, w in zip(alphabet, ws, strict=True) if w})


@examples(60)
@given(distributions("abcd"), distributions("cdab"))
def test_what_is_emitted_by_rejection_is_distributed_as_the_target_whatever_the_draft(
    p: Distribution, q: Distribution
) -> None:
    found = law(p, q)
    assert {token for token, share in found.items() if share > 1e-9} == set(p)
    assert found == pytest.approx({**dict.fromkeys(found, 0.0), **p}, abs=1e-9)


def test_a_draft_that_never_writes_what_the_target_does_changes_nothing() -> None:
    p = {"a": 0.25, "b": 0.75}
    assert law(p, {"x": 0.5, "y": 0.5}) == pytest.approx({**p, "x": 0, "y": 0}, abs=1e-9)


@examples(40)
@given(
    st.lists(st.integers(1, 9), min_size=6, max_size=6),
    st.lists(st.integers(1, 9), min_size=6, max_size=6),
    st.lists(st.booleans(), min_size=6, max_size=6),
)
def test_with_hidden_outcomes_rejection_over_the_visible_ones_gives_the_whole_distribution(
    target: list[int], draft: list[int], hides: list[bool]
) -> None:
    texts = ["" if hidden else text for hidden, text in zip(hides, "abcdef", strict=True)]
    tokens = [Token(text) for text in texts]
    raw_p, raw_q = ([weight / sum(ws) for weight in ws] for ws in (target, draft))
    distinct = frozenset("abcdef")
    p, q = renormalize_visible(tokens, raw_p, distinct), renormalize_visible(tokens, raw_q, distinct)
    if p is None or q is None:  # nothing is visible: there is nothing to reject
        assert not any(texts)
        return
    hidden = sum(weight for weight, text in zip(raw_p, texts, strict=True) if not text)
    emitted = {token: (1 - hidden) * share for token, share in law(p, q).items()}
    assert emitted == pytest.approx({text: w for text, w in zip(texts, raw_p, strict=True) if text}, abs=1e-9)


# several places

VISIBLE: tuple[Outcome, ...] = ("a", "b", "c", "d")
HIDING: tuple[Outcome, ...] = (*VISIBLE, Hidden("é"), Hidden("ñ"), End())
BASE = SamplingOptions(temperature=1.0, top_k=7, top_p=1.0, num_predict=3)


def contrary(script: Script) -> Script:
    """A draft that thinks most probable what the target thinks least probable."""

    def turned(reply: str) -> dict[Outcome, float]:
        ordered = sorted(script(reply).items(), key=lambda entry: entry[1])
        weights = sorted((weight**2 for _, weight in ordered), reverse=True)
        return {drawn: w / sum(weights) for (drawn, _), w in zip(ordered, weights, strict=True)}

    return turned


SCENES = {
    "rejection, hidden outcomes and ends in both": Scene(wild(1, HIDING), wild(2, HIDING), BASE),
    "rejection, colder, hidden outcomes in the target only": Scene(
        wild(3, HIDING),
        wild(4, VISIBLE),
        replace(BASE, temperature=0.7, top_k=5),
        draft_options=replace(BASE, temperature=0.7, top_k=4),
        lookahead=1,
    ),
    "rejection, hotter, hidden outcomes in the draft only": Scene(
        wild(5, VISIBLE), wild(6, HIDING), replace(BASE, temperature=1.3, top_k=0, top_p=0.85)
    ),
    "rejection, every cut at once": Scene(
        wild(7, HIDING),
        wild(8, HIDING),
        replace(BASE, temperature=0.7, top_k=6, top_p=0.93, min_p=0.15, num_predict=2),
    ),
    "rejection, a draft wrong on purpose and far too sure": Scene(
        wild(9, HIDING),
        contrary(wild(9, HIDING)),
        replace(BASE, temperature=1.3, num_predict=2),
        draft_options=replace(BASE, temperature=0.4),
    ),
    "rejection where three tokens shown make it certain, match elsewhere": Scene(
        wild(26, HIDING, contrast=3),
        wild(11, HIDING),
        replace(BASE, top_k=40, top_p=0.75),
        draft_options=replace(restrict_to_shown(BASE, 3), top_p=0.9),
        target=partial(ScriptedTarget, shown=3),
        drafter=partial(ScriptedDrafter, shown=3),
    ),
    "match, a draft that writes its most probable tokens": Scene(
        wild(12, HIDING),
        wild(13, HIDING),
        BASE,
        rule=AcceptanceMethod.MATCH,
        draft_options=replace(BASE, temperature=0),
    ),
    "match, hotter, min_p, a draft that never comes near": Scene(
        wild(14, HIDING),
        constant_script({"z": 1.0}),
        replace(BASE, temperature=1.3, min_p=0.1, num_predict=2),
        rule=AcceptanceMethod.MATCH,
        lookahead=1,
    ),
}


@pytest.mark.parametrize("name", SCENES)
async def test_the_first_tokens_are_distributed_as_the_targets_own(name: str) -> None:
    assert await departure(SCENES[name]) > 0.001


@pytest.mark.parametrize("name", [name for name in SCENES if "never comes near" not in name])
async def test_the_scenes_accept_and_recover_and_see_hidden_tokens_and_ends(name: str) -> None:
    """Or the checks above would say nothing."""
    scene = SCENES[name]
    runs = [scene.run(seed) for seed in range(300)]
    tokens = [token for run in runs for token in await first_tokens(run)]
    assert sum(run.stats.accepted for run in runs) > 10
    assert sum(run.stats.recovered for run in runs) > 10
    if "in the draft only" not in name:
        assert {"é", "ñ", END} & set(tokens)
        assert sum(run.stats.plain for run in runs) > 0


@pytest.mark.parametrize("name", [name for name in SCENES if name.startswith("rejection")])
async def test_the_scenes_of_rejection_know_p_and_q(name: str) -> None:
    """Everywhere, but for the one scene that mixes rejection with match."""
    scene = SCENES[name]
    along = Draft(tuple(map(Token, "abcd" * 5)))
    rows = (await scene.target(scene.p, scene.options, 1).score(along)).rows.values()
    known = [row.p is not None for row in rows if row.sample]
    assert any(known)
    assert all(known) == ("match elsewhere" not in name)
    drafter = scene.drafter(scene.q, scene.draft_options or scene.options, 1)
    q = [q for text in ("", "a", "ab", "abc") for q in (await drafter.propose(text, 3)).q]
    assert q
    assert None not in q


@pytest.mark.parametrize("rule", [AcceptanceMethod.GREEDY, AcceptanceMethod.MATCH, AcceptanceMethod.REJECTION])
async def test_at_temperature_zero_the_text_is_the_targets_own_by_any_rule(rule: AcceptanceMethod) -> None:
    for seed in range(40):
        script = wild(seed, HIDING)
        options = SamplingOptions(temperature=0, num_predict=12)
        run = speculation(
            ScriptedTarget(script, options, 1), ScriptedDrafter(wild(seed % 7, HIDING), options, 2), options, rule=rule
        )
        assert reply(await events(run)) == await plain(script, options, seed=3)
