"""Route local draws as the target's sampler does: made-up models whose probabilities are written down.

2,000 draws of up to three tokens at alpha 0.001 ; the planted faults are found at p < 1e-6.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import AsyncIterator, Mapping
from dataclasses import replace
from pathlib import Path

import pytest
import pytest_asyncio

from specollama.backends.llama_cpp.model import LoadOptions
from specollama.backends.llama_cpp.sampler import Sampler
from specollama.pairs.routes import local_models
from specollama.pairs.routes.local_models import LocalModels, load_models
from specollama.spec_decode.types import AcceptanceMethod, SamplingOptions
from tests.support.chi_square import p_value
from tests.support.local_replies import reply, settings
from tests.support.reference_sampler import sampled
from tests.support.tiny_models import END, bigram_model

DRAWS = 2_000
ALPHA = 0.001
FOUND = 1e-6
PROMPT = "ab"
TARGET: Mapping[str, Mapping[str, float]] = {
    "a": {"a": 0.5, "b": 0.3, END: 0.05, "t": 0.15},
    "b": {"a": 0.2, "b": 0.2, "t": 0.6},
    "": {"a": 0.6, "b": 0.35, END: 0.05},
}
DRAFT: Mapping[str, Mapping[str, float]] = {
    "a": {"a": 0.2, "b": 0.7, "t": 0.1},
    "b": {"a": 0.7, "b": 0.1, "t": 0.2},
    "": {"a": 0.3, "b": 0.7},
}
OPTIONS = {
    "plain": SamplingOptions(temperature=1.0, top_k=0, top_p=1.0, num_predict=3),
    "as Ollama's": SamplingOptions(temperature=0.8, num_predict=3),
    "penalties": SamplingOptions(
        temperature=1.0,
        top_k=0,
        top_p=1.0,
        repeat_penalty=1.4,
        presence_penalty=0.3,
        frequency_penalty=0.2,
        num_predict=3,
    ),
}


def expected(options: SamplingOptions) -> dict[str, float]:
    """The probability of each reply; a reply that ended has "$" behind it."""
    replies: dict[str, float] = {}

    def walk(text: str, probability: float) -> None:
        if len(text) == options.num_predict:
            replies[text] = replies.get(text, 0) + probability
            return
        after = (PROMPT + text)[-1]
        table = _penalised(TARGET.get(after, TARGET[""]), PROMPT + text, options)
        for token, share in sampled(table, options).items():
            if token == END:
                replies[text + "$"] = probability * share
            else:
                walk(text + token, probability * share)

    walk("", 1.0)
    return replies


def _penalised(table: Mapping[str, float], before: str, options: SamplingOptions) -> dict[str, float]:
    """As llama.cpp does it to logits, which are log p here; the begin marker is the only token never written."""
    logits = {token: math.log(share) for token, share in table.items()}
    for token, times in Counter(before).items():
        if token in logits:
            value = logits[token]
            value = value * options.repeat_penalty if value <= 0 else value / options.repeat_penalty
            logits[token] = value - times * options.frequency_penalty - options.presence_penalty
    total = sum(math.exp(value) for value in logits.values())
    return {token: math.exp(value) / total for token, value in logits.items()}


@pytest_asyncio.fixture(scope="module")
async def pair(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[LocalModels]:
    folder: Path = tmp_path_factory.mktemp("bigrams")
    target, draft = bigram_model(folder / "target.gguf", TARGET), bigram_model(folder / "draft.gguf", DRAFT)
    opened = await load_models(target, {"draft": draft}, LoadOptions(context_length=64, threads=1), lookup=False)
    yield opened
    await opened.close()


async def drawn(
    pair: LocalModels, options: SamplingOptions, rule: AcceptanceMethod, lookahead: int = 2
) -> Counter[str]:
    chosen, counts = settings(lookahead, rule), Counter[str]()
    for _ in range(DRAWS):
        text, reason, _ = await reply(pair, PROMPT, options, chosen)
        counts[text + ("$" if reason == "stop" else "")] += 1
    return counts


@pytest.mark.slow
@pytest.mark.parametrize("scene", OPTIONS)
@pytest.mark.parametrize("rule", [AcceptanceMethod.MATCH, AcceptanceMethod.REJECTION])
async def test_replies_are_distributed_as_the_targets_own(
    pair: LocalModels, rule: AcceptanceMethod, scene: str
) -> None:
    counts = await drawn(pair, OPTIONS[scene], rule)
    assert p_value(counts, expected(OPTIONS[scene])) >= ALPHA


async def test_the_test_finds_a_draft_that_is_taken_as_it_comes(pair: LocalModels) -> None:
    taken = LocalModels(pair.drafters.drafts[0], replace(pair.drafters, drafts=[]), [])
    counts = await drawn(taken, OPTIONS["plain"], AcceptanceMethod.MATCH, lookahead=0)
    assert p_value(counts, expected(OPTIONS["plain"])) < FOUND


async def test_the_test_finds_noise_that_comes_twice(pair: LocalModels, monkeypatch: pytest.MonkeyPatch) -> None:
    class Repeating(Sampler):
        def draw(self, logits: object, before: object, position: int) -> int:
            return super().draw(logits, before, 0)  # type: ignore[arg-type]

    monkeypatch.setattr(local_models, "Sampler", Repeating)
    counts = await drawn(pair, OPTIONS["plain"], AcceptanceMethod.MATCH, lookahead=0)
    assert p_value(counts, expected(OPTIONS["plain"])) < FOUND


async def test_the_test_finds_penalties_that_are_left_out(pair: LocalModels) -> None:
    counts = await drawn(pair, OPTIONS["plain"], AcceptanceMethod.MATCH, lookahead=0)
    assert p_value(counts, expected(OPTIONS["penalties"])) < FOUND
