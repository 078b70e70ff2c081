"""The end-to-end comparison finds five known ways of losing the target's distribution.

The served models are bigram models with written probabilities: on the default pair, whose draft is close to its
target and whose hidden draws are few, the smaller faults would take many thousands of replies to be seen. Each
fault is planted where sound code passes, with the same draft, options and comparison.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import AsyncIterator, Iterator
from dataclasses import replace

import pytest
import pytest_asyncio

from specollama.backends.llama_cpp.tokenizer import LlamaTokenizer
from specollama.backends.ollama.client import OllamaServer
from specollama.backends.ollama.drafter import OllamaDrafter
from specollama.backends.ollama.schema import Logprob
from specollama.backends.ollama.target import ParallelTarget
from specollama.server.embedded.serve import ServeSettings, serve_models
from specollama.spec_decode import acceptance
from specollama.spec_decode.sampler_support import support
from specollama.spec_decode.types import Distribution, Draft, SamplingOptions, TargetContinuation, Token
from tests.support.real_runs import Scene
from tests.support.tiny_models import bigram_model
from tests.support.two_samples import Departure, departure

ALPHA = 0.001
DRAWS = 300
SEED = 1  # of all that is drawn here: a fault that was found is found again

FRAGMENT = b"\xc3"  # the first half of é: a draw of it is hidden
REST = {b"\xa9": 1.0}
TABLES = {
    "target": {"": {"a": 0.50, "b": 0.28, FRAGMENT: 0.22}, FRAGMENT: REST},
    "hiding": {"": {FRAGMENT: 0.52, "b": 0.48}, FRAGMENT: REST},
    "sure": {"": {"b": 1.0}, FRAGMENT: REST},
    "spread": {"": {"b": 0.50, "a": 0.25, "c": 0.25}, FRAGMENT: REST},
}

pytestmark = pytest.mark.slow


@pytest.fixture(scope="session")
def url(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    folder = tmp_path_factory.mktemp("bigrams")
    models = {name: bigram_model(folder / f"{name}.gguf", table) for name, table in TABLES.items()}
    with serve_models(models, ServeSettings(num_ctx=1024, parallel=8)) as server:
        yield server.url


@pytest_asyncio.fixture(scope="session")
async def hiding(url: str, tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Scene]:
    """Half of the draft model's draws are hidden, and the others are all the same."""
    path = tmp_path_factory.mktemp("vocabulary") / "bigram.gguf"
    vocabulary = LlamaTokenizer(bigram_model(path, TABLES["target"]))
    async with OllamaServer(url) as server:
        options = SamplingOptions(temperature=1.2, num_predict=3)
        yield Scene(server, vocabulary, "abba", options, draft="hiding")
    vocabulary.close()


@pytest.fixture
def sure(hiding: Scene) -> Scene:
    """The draft model always writes what the target writes seldom."""
    return replace(hiding, draft="sure")


@pytest.fixture
def spread(hiding: Scene) -> Scene:
    """Half of the draft model's draws are improbable ones, some of them impossible for the target."""
    return replace(hiding, draft="spread")


@pytest_asyncio.fixture(scope="session")
async def alone(hiding: Scene) -> Counter[str]:
    return (await hiding.alone(2 * DRAWS, -SEED)).texts


async def compared(scene: Scene, alone: Counter[str]) -> Departure:
    sample = await scene.speculated(DRAWS, SEED)
    found = departure([sample.texts], [alone])
    print(f"{found}; {sample}")
    return found


@pytest.mark.parametrize("draft", ["hiding", "sure", "spread"])
async def test_sound_code_passes_where_the_faults_are_planted(hiding: Scene, alone: Counter[str], draft: str) -> None:
    assert (await compared(replace(hiding, draft=draft), alone)).p_value >= ALPHA


async def test_planted_accepting_every_drafted_token_is_found(
    sure: Scene, alone: Counter[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(acceptance, "accepts", lambda token, p, q, random: True)
    assert (await compared(sure, alone)).p_value < ALPHA


async def test_planted_recovering_from_p_itself_is_found(
    sure: Scene, alone: Counter[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(acceptance, "residual", lambda p, q: p)
    assert (await compared(sure, alone)).p_value < ALPHA


class RawQ(OllamaDrafter):
    """Tells the probabilities that its tokens have among all, the hidden ones included."""

    def _drawn(self, entry: Logprob) -> tuple[bool, Distribution | None]:
        known, q = super()._drawn(entry)
        top = [Token(each.token, each.logprob) for each in entry.top_logprobs or ()]
        probabilities = support(top, self._requests.options)
        if q is None or probabilities is None:
            return known, q
        seen = sum(p for token, p in zip(top, probabilities, strict=False) if token.text)
        return known, {token: p * seen for token, p in q.items()}


async def test_planted_q_that_is_not_normalised_over_the_visible_tokens_is_found(
    hiding: Scene, alone: Counter[str]
) -> None:
    assert (await compared(replace(hiding, drafter_class=RawQ), alone)).p_value < ALPHA


class Unsure(OllamaDrafter):
    """Ends its draft before the first token that it was not sure enough of."""

    async def propose(self, text: str, count: int) -> Draft:
        draft = await super().propose(text, count)
        sure = [q is not None and q[token.text] > 0.4 for token, q in zip(draft.tokens, draft.q, strict=True)]
        kept = sure.index(False) if False in sure else len(sure)
        return Draft(draft.tokens[:kept], draft.q[:kept])


async def test_planted_dropping_drafted_tokens_by_their_own_probability_is_found(
    spread: Scene, alone: Counter[str]
) -> None:
    assert (await compared(replace(spread, drafter_class=Unsure), alone)).p_value < ALPHA


class FreshSeed(ParallelTarget):
    """After a draw without text, draws anew and takes whatever comes."""

    async def _extend(self, limit: int | None) -> TargetContinuation:
        kept, self._seed = self._seed, self._seed ^ 0x5EED
        try:
            return await super()._extend(limit)
        finally:
            self._seed = kept


async def test_planted_fresh_seed_after_a_hidden_token_is_found(hiding: Scene, alone: Counter[str]) -> None:
    assert (await compared(replace(hiding, target_class=FreshSeed), alone)).p_value < ALPHA
