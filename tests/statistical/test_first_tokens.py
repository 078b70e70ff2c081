"""Losslessness in distribution, end to end: the first three tokens of a real pair's replies.

Each test compares as many speculated replies as direct ones, a quarter of them from each of two prompts at two
temperatures, under Ollama's default top_k and top_p; the direct ones are drawn once for all tests. The seeds are fixed,
but a real engine's batches may round otherwise in another run: so alpha is one false alarm in a thousand runs of the
four tests together. SPECOLLAMA_TEST_DRAWS draws more replies, SPECOLLAMA_TEST_SEED others.
"""

from __future__ import annotations

import os
from collections import Counter
from dataclasses import replace
from random import Random

import pytest
import pytest_asyncio

from specollama.backends.llama_cpp.tokenizer import LlamaTokenizer
from specollama.backends.ollama.client import OllamaServer
from specollama.spec_decode.types import AcceptanceMethod, SamplingOptions
from tests.support.real_runs import DRAWS, Sample, Scene, hotter
from tests.support.two_samples import departure, pooled

ALPHA = 0.001 / 4  # tests
SEED = os.environ.get("SPECOLLAMA_TEST_SEED", "1")

# ". , or the end" is certain in its first row, and seldom after it
RAINING = "<|im_start|>user\nAnswer yes or no: is it raining?<|im_end|>\n<|im_start|>assistant\nYes"
# one of ten draws is a star, of three tokens without text, and most rows are certain
STARS = "11★010★0★00011★1★110★★1101001★★1011★★01★0"

pytestmark = pytest.mark.slow


@pytest.fixture(scope="session")
def scenes(smollm: OllamaServer, smollm_vocabulary: LlamaTokenizer) -> list[Scene]:
    return [
        Scene(smollm, smollm_vocabulary, prompt, SamplingOptions(temperature=temperature, num_predict=3))
        for prompt in (RAINING, STARS)
        for temperature in (0.8, 1.2)
    ]


def seed_of(part: str) -> int:
    return Random(f"{SEED} {part}").getrandbits(64)


@pytest_asyncio.fixture(scope="session")
async def alone(scenes: list[Scene]) -> list[Counter[str]]:
    return [
        (await scene.alone(DRAWS // len(scenes), seed_of(f"alone {place}"))).texts for place, scene in enumerate(scenes)
    ]


@pytest.mark.parametrize("draft", ["default", "wrong on purpose"])
@pytest.mark.parametrize("rule", [AcceptanceMethod.REJECTION, AcceptanceMethod.MATCH])
async def test_the_first_three_tokens_are_distributed_as_the_targets_own(
    scenes: list[Scene], alone: list[Counter[str]], rule: AcceptanceMethod, draft: str
) -> None:
    base, samples = seed_of(f"{rule} {draft}"), list[Sample]()
    for scene, expected in zip(scenes, alone, strict=True):
        options = None if draft == "default" else hotter(scene.options)
        sample = await replace(scene, rule=rule, draft_options=options).speculated(DRAWS // len(scenes), base)
        samples.append(sample)
        print(f"{scene.options.temperature}, {scene.prompt[-8:]!r}: {departure([sample.texts], [expected])}; {sample}")
    found = departure([sample.texts for sample in samples], alone)
    print(f"{rule}, {draft} draft, seed {base}: {found}")
    assert_telling(samples, rule)
    assert found.p_value >= ALPHA, f"seed {base}: {found}"


def assert_telling(samples: list[Sample], rule: AcceptanceMethod) -> None:
    """Or the comparison would say little: tokens accepted and recovered, ends, hidden draws, rows of both kinds."""
    rows = Counter[str]()
    for sample in samples:
        rows += sample.rows
        assert len(pooled(sample.texts, 5)) >= 3
        assert sum(stats.accepted for stats in sample.stats) > 0
    assert sum(stats.recovered for sample in samples for stats in sample.stats) > 0  # of one prompt there may be none
    wanted = {"end", "hidden", "p unknown"} | ({"p known"} if rule is AcceptanceMethod.REJECTION else set())
    assert wanted <= set(rows)
