"""Route scoring draws as the engine alone does: exactly, every reply of made-up pairs written out."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Hashable, Mapping, Sequence
from contextlib import aclosing
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from specollama.backends.engines.base import (
    Capabilities,
    DrawSettings,
    EngineInfo,
    PromptPosition,
    SampledToken,
    ScoringRequest,
    StreamPiece,
)
from specollama.backends.engines.token_texts import TokenTexts
from specollama.backends.llama_cpp.sampler import Sampler
from specollama.pairs.drafters import DrafterSet
from specollama.pairs.feasibility import ReplyContext
from specollama.pairs.request import CompletionInput
from specollama.pairs.routes.scoring import ScoringPlan
from specollama.pairs.routes.scoring_feasibility import EnginePrompt
from specollama.pairs.routes.scoring_models import ScoringModels
from specollama.spec_decode.types import DoneReason, SamplingOptions
from tests.support.every_draw import Chance, Uniform, law
from tests.support.made_up import (
    END,
    Bigrams,
    Clock,
    Lookahead,
    Side,
    Vocabulary,
    distance,
    exact,
    only_made_up,
    pair,
    said,
)
from tests.support.scoring_replies import settings

pytestmark = pytest.mark.no_cover  # thousands of replies that run nothing the other tests don't

EQUAL = 1e-6
PROMPT = "."
OPTIONS = SamplingOptions(temperature=1.0, top_k=0, top_p=1.0, num_predict=3)
SPELLING, SEEDING = Capabilities(), Capabilities(detokenizes=False, needs_seed=True)


@dataclass
class EveryEngine:
    """An engine whose draws take every value: fresh ones, or where a seed is given one for each seed."""

    side: Side
    chance: Chance
    capabilities: Capabilities = field(default_factory=Capabilities)
    url: str = "made-up"
    rows_asked: int = 0
    _noise: dict[int, Uniform] = field(default_factory=dict)

    def draw(self, place: PromptPosition, seed: int | None) -> SampledToken:
        vocabulary = self.side.vocabulary
        model = Bigrams(vocabulary.names, self.side.follow, Clock(), self.side.cost)
        [row] = model.logits(list(place.tokens), 1, lambda: False)
        tokens, probabilities = Sampler(OPTIONS, 0).distribution(row, list(place.tokens))
        number = Uniform(self.chance) if seed is None else self._noise.setdefault(seed, Uniform(self.chance))
        order = np.argsort(tokens)
        token = int(tokens[order][number.place(probabilities[order].tolist())])
        return SampledToken(token, vocabulary.token_text(token), end=vocabulary.is_end(token))

    async def score_positions(self, request: ScoringRequest, draws: DrawSettings) -> list[SampledToken | None]:
        places = request.positions()
        self.rows_asked += len(places)
        return [self.draw(place, draws.request_seed(places)) for place in places]

    async def stream(
        self, place: PromptPosition, limit: int | None, draws: DrawSettings
    ) -> AsyncGenerator[StreamPiece, None]:
        tokens, drawn = list(place.tokens), list[int]()
        while limit is None or len(drawn) < limit:
            position = place.position + len(drawn)
            found = self.draw(PromptPosition(tokens + drawn, position), draws.seed_at(position))
            if found.end:
                break
            drawn.append(found.token)
        text = b"".join(map(self.side.vocabulary.token_bytes, drawn)).decode(errors="ignore")
        ended = limit is None or len(drawn) < limit
        yield StreamPiece(text, len(drawn), DoneReason.STOP if ended else DoneReason.LENGTH)

    async def tokenize(self, text: str, *, whole: bool) -> list[int]:
        return list(self.side.vocabulary.encode(text))

    async def detokenize(self, runs: Sequence[Sequence[int]]) -> list[str]:
        return [b"".join(map(self.side.vocabulary.token_bytes, run)).decode(errors="replace") for run in runs]

    async def info(self) -> EngineInfo:
        return EngineInfo("made-up")

    async def render(self, messages: Sequence[Mapping[str, Any]]) -> tuple[list[int], str]:
        raise NotImplementedError

    async def count_chat_tokens(self, messages: Sequence[Mapping[str, Any]]) -> int:
        raise NotImplementedError

    def chat(self, messages: Sequence[Mapping[str, Any]], limit: int | None, draws: DrawSettings) -> Any:
        raise NotImplementedError


def cost(tokens: int) -> float:
    return 1 + 0.01 * (tokens - 1)


@dataclass(frozen=True)
class Scene:
    target: Side
    draft: Side | None  # None: lookup alone


def scene(target: Vocabulary, follow: Mapping[Any, Any], draft: Vocabulary | None, guesses: Mapping[Any, Any]) -> Scene:
    return Scene(Side(target, follow, cost), None if draft is None else Side(draft, guesses, lambda tokens: 0.01))


LETTERS = Vocabulary(".", "\n", "a", "b", "ab", END)
PARTS = Vocabulary(".", "\n", "a", b"\xc3", b"\xa9", b"\xb1", END)  # é and ñ have the same first part
TWINS = Vocabulary(".", "\n", "a", "a'", "b", END)  # what follows tells the two apart
PIECES = Vocabulary(".", "\n", "a", "b", "ab", "c", END)

LETTERS_FOLLOW = {"a": {"a": 0.5, "b": 0.3, END: 0.2}, "": {"a": 0.5, "b": 0.3, "ab": 0.2}}
PARTS_FOLLOW = {
    b"\xc3": {b"\xa9": 0.7, b"\xb1": 0.3},
    "a": {"a": 0.5, b"\xc3": 0.3, END: 0.2},
    "": {"a": 0.6, b"\xc3": 0.4},
}
TWINS_FOLLOW = {"a": {"b": 0.8, "a'": 0.2}, "a'": {"b": 0.1, "a": 0.9}, "": {"a": 0.3, "a'": 0.3, "b": 0.4}}
SCENES = {
    "letters": scene(LETTERS, LETTERS_FOLLOW, LETTERS, {"a": {"b": 1}, "": {"a": 1}}),
    "letters, other tokens": scene(LETTERS, LETTERS_FOLLOW, Vocabulary("b", "a", "."), {"a": {"b": 1}, "": {"a": 1}}),
    "letters, lookup": scene(LETTERS, LETTERS_FOLLOW, None, {}),
    "characters": scene(PARTS, PARTS_FOLLOW, PARTS, {"a": {"a": 1}, "": {"a": 1}}),
    "characters, other tokens": scene(PARTS, PARTS_FOLLOW, Vocabulary("é", "a", "."), {"a": {"é": 1}, "": {"a": 1}}),
    "characters, lookup": scene(PARTS, PARTS_FOLLOW, None, {}),
    "twins": scene(TWINS, TWINS_FOLLOW, TWINS, {"a": {"b": 1}, "": {"a": 1}}),
    "twins, other tokens": scene(TWINS, TWINS_FOLLOW, Vocabulary("b", "a", "."), {"a": {"b": 1}, "": {"a": 1}}),
    "twins, lookup": scene(TWINS, TWINS_FOLLOW, None, {}),
}


async def law_of(of: Scene, can: Capabilities, lookahead: Lookahead, options: SamplingOptions) -> dict[str, float]:
    known = dict[Hashable, tuple[Any, Any]]()

    async def experiment(chance: Chance) -> str:
        engine, clock = EveryEngine(of.target, chance, can), Clock()
        with pytest.MonkeyPatch.context() as patch:
            only_made_up(patch, chance, clock, known)
            drafts = pair(of.target, of.draft, clock).drafters.drafts
            drafting = DrafterSet(
                drafts, of.draft is None, Path("nowhere"), pair(of.target, None, clock).drafters.profile
            )
            same = next((opened.vocabulary for opened in drafts if opened.shares_tokenizer), None)
            lexicon = TokenTexts(engine, same)
            scoring = ScoringModels(engine, await engine.info(), "made-up", "", "", drafting, lexicon, same)
            prompted = EnginePrompt(of.target.vocabulary.encode(PROMPT), PROMPT)
            asked = settings("vllm", "http://made-up", lookahead=lookahead)
            context = ReplyContext(asked, CompletionInput(PROMPT, asdict(options)))
            async with aclosing(ScoringPlan(scoring, prompted, context).events()) as events:
                return await said(events)

    return await law(experiment)


@pytest.mark.parametrize("name", SCENES)
@pytest.mark.parametrize("lookahead", [1, 2, (2, 1), "auto"], ids=str)
@pytest.mark.parametrize("can", [SPELLING, SEEDING], ids=["spells", "must be seeded"])
async def test_each_reply_has_the_probability_that_the_engine_gives_it(
    name: str, lookahead: Lookahead, can: Capabilities
) -> None:
    found = await law_of(SCENES[name], can, lookahead, OPTIONS)
    assert sum(found.values()) == pytest.approx(1)
    assert distance(found, exact(SCENES[name].target, OPTIONS)) < EQUAL


@pytest.mark.parametrize("num_predict", [1, 2, 3])
async def test_a_reply_never_has_more_tokens_than_asked_for(num_predict: int) -> None:
    """A character of two tokens that begins at the last of them is left out, as the engine's stream leaves it out."""
    options = SamplingOptions(temperature=1.0, top_k=0, top_p=1.0, num_predict=num_predict)
    of = SCENES["characters"]
    assert distance(await law_of(of, SPELLING, 2, options), exact(of.target, options)) < EQUAL


async def test_tokens_of_other_texts_than_the_drafted_ones_are_not_taken_for_them() -> None:
    """An engine that doesn't tell what its tokens print: "abcc" has three tokens for both, and they are others."""
    of = scene(
        PIECES,  # ab, c, c
        {".": {"ab": 0.6, "a": 0.4}, "ab": {"c": 0.7, "a": 0.3}, "": {"b": 0.5, "c": 0.5}},
        Vocabulary("a", "b", "cc", "c", "."),  # a, b, cc
        {".": {"a": 1}, "a": {"b": 1}, "b": {"cc": 1}, "": {"a": 1}},
    )
    options = replace(OPTIONS, num_predict=4)
    assert distance(await law_of(of, SEEDING, 3, options), exact(of.target, options)) < EQUAL
