"""The statistical check finds five known ways of losing the target's distribution.

Each fault is planted in the same scene in which sound code passes, with the same seeds and the same check.
"""

from __future__ import annotations

from dataclasses import replace

import pytest

from specollama.backends.scripted import End, Hidden, Outcome, Script, ScriptedDrafter, ScriptedTarget, constant_script
from specollama.spec_decode import acceptance
from specollama.spec_decode.types import Draft, SamplingOptions, TargetContinuation, Token, VerifyResult
from tests.support.scripted_runs import Scene, departure, joint, wild

DRAWS = 6_000
FOUND = 1e-6

OPTIONS = SamplingOptions(temperature=1.0, top_k=5, top_p=1.0, num_predict=2)
DRAFT_OPTIONS = replace(OPTIONS, top_k=4)
P: dict[Outcome, float] = {"a": 0.34, "b": 0.24, "c": 0.14, Hidden("é"): 0.22, End(): 0.06}
Q: dict[Outcome, float] = {"a": 0.16, "b": 0.29, "c": 0.2, Hidden("x"): 0.35}
SCENE = Scene(constant_script(P), constant_script(Q), OPTIONS, draft_options=DRAFT_OPTIONS)


async def test_sound_code_passes_where_the_faults_are_planted() -> None:
    assert await departure(SCENE, DRAWS) > 0.001


async def test_planted_accepting_every_drafted_token_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(acceptance, "accepts", lambda token, p, q, random: True)
    assert await departure(SCENE, DRAWS) < FOUND


async def test_planted_recovering_from_p_itself_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(acceptance, "residual", lambda p, q: p)
    assert await departure(SCENE, DRAWS) < FOUND


class RawQ(ScriptedDrafter):
    """Tells the probabilities that its tokens have among all, the hidden ones included."""

    async def propose(self, text: str, count: int) -> Draft:
        draft = await super().propose(text, count)
        seen = sum(p for drawn, p in Q.items() if isinstance(drawn, str))
        return replace(draft, q=tuple(q and {token: p * seen for token, p in q.items()} for q in draft.q))


async def test_planted_q_that_is_not_normalised_over_the_visible_tokens_is_found() -> None:
    assert await departure(replace(SCENE, drafter=RawQ), DRAWS) < FOUND


class Unsure(ScriptedDrafter):
    """Ends its draft before the first token that it was not sure enough of."""

    async def propose(self, text: str, count: int) -> Draft:
        draft = await super().propose(text, count)
        sure = [q is not None and q[token.text] > 0.28 for token, q in zip(draft.tokens, draft.q, strict=True)]
        kept = sure.index(False) if False in sure else len(sure)
        return Draft(draft.tokens[:kept], draft.q[:kept])


async def test_planted_dropping_drafted_tokens_by_their_own_probability_is_found() -> None:
    assert await departure(replace(SCENE, drafter=Unsure), DRAWS) < FOUND


class FreshSeed(ScriptedTarget):
    """After a draw without text, draws anew and takes whatever comes."""

    def __init__(self, script: Script, options: SamplingOptions, seed: int) -> None:
        super().__init__(script, options, seed)
        self._fresh = ScriptedTarget(script, options, seed + 500_000)

    async def commit(self, verdict: VerifyResult, limit: int | None) -> TargetContinuation:
        if not verdict.hidden:
            return await super().commit(verdict, limit)
        await super().commit(replace(verdict, hidden=False), limit)
        first = await anext(self._fresh.stream(1))
        if isinstance(first, TargetContinuation):
            return first
        self._reply += first.text
        self._drawn += 1
        return TargetContinuation((Token(first.text),), sampled=1)


async def test_planted_fresh_seed_after_a_hidden_token_is_found() -> None:
    assert await departure(replace(SCENE, target=FreshSeed), DRAWS) < FOUND


async def test_the_check_is_blind_to_nothing_but_the_fault(monkeypatch: pytest.MonkeyPatch) -> None:
    """A draft equal to the target hides a verifier that accepts everything: why the scene drafts wrong on purpose."""
    same: dict[Outcome, float] = {"a": 0.5, "b": 0.3, "c": 0.2}
    scene = Scene(constant_script(same), constant_script(same), replace(OPTIONS, top_k=3))
    assert await departure(scene, 2_000) > 0.001
    monkeypatch.setattr(acceptance, "accepts", lambda token, p, q, random: True)
    assert await departure(scene, 2_000) > 0.001


@pytest.mark.parametrize("script", [constant_script(P), wild(1, tuple(P))])
def test_the_enumerated_probabilities_add_up_to_one(script: Script) -> None:
    assert sum(joint(script, OPTIONS).values()) == pytest.approx(1)
