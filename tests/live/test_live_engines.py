"""Running engines, by URL: `SPECOLLAMA_LIVE_VLLM=MODEL@URL pytest -m live`, and SGLANG, TENSORRT_LLM, LLAMA_SERVER.

`SPECOLLAMA_LIVE_TOKEN`: their API key, if they have one. The texts of a quantised target may part at near-ties.
"""

from __future__ import annotations

import os
from dataclasses import replace

import pytest

from specollama.backends.engines.detect import detect
from specollama.backends.ollama.schema import Message
from specollama.config.endpoints import Endpoint, parse_model_at
from specollama.config.settings import ModelRef
from specollama.pairs.pair import Pair
from specollama.pairs.request import ChatInput, CompletionInput
from specollama.spec_decode.types import Route, ServerApi
from tests.support.scoring_replies import reply, settings

ENGINES = [ServerApi.VLLM, ServerApi.SGLANG, ServerApi.TENSORRT_LLM, ServerApi.LLAMA_SERVER]
COLD = {"temperature": 0, "num_predict": 64}
REPEATING = "Repeat this line three times, and nothing else: the quick brown fox jumps over the lazy dog 🙂"
pytestmark = pytest.mark.live


@pytest.fixture(params=ENGINES, ids=str)
def target(request: pytest.FixtureRequest) -> ModelRef:
    variable = f"SPECOLLAMA_LIVE_{request.param.name}"
    if not os.environ.get(variable):
        pytest.skip(f"{variable} isn't set")
    model, url = parse_model_at(os.environ[variable])
    assert url, f"{variable} has to be MODEL@URL"
    token = "SPECOLLAMA_LIVE_TOKEN" if os.environ.get("SPECOLLAMA_LIVE_TOKEN") else None
    return ModelRef(model, Endpoint(url, variable, token_env=token), request.param)


def pair(target: ModelRef, route: Route) -> Pair:
    return Pair(replace(settings(target.api, target.endpoint.url, route=route), target=target), os.environ)


async def test_the_engine_is_recognised(target: ModelRef) -> None:
    assert await detect(target.endpoint, os.environ) is target.api


@pytest.mark.parametrize(
    "ask",
    [
        ChatInput([Message(role="user", content=REPEATING)], options=COLD),
        CompletionInput("one two three four one two three four one two", options=COLD, raw=True),
    ],
    ids=["chat", "raw"],
)
async def test_the_text_is_what_the_engine_writes_alone(target: ModelRef, ask: ChatInput | CompletionInput) -> None:
    async with pair(target, Route.PLAIN) as alone:
        plain, _, _ = await reply(alone, ask)
    async with pair(target, Route.SCORING) as scored:
        text, stats, status = await reply(scored, ask)
    assert text == plain, status
    if stats.route is Route.SCORING:
        assert stats.accepted > 0
