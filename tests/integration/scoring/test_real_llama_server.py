"""A real llama-server, the one that the embedded server wraps: texts as it writes them alone, chat and draft real."""

from __future__ import annotations

import os
from collections.abc import Callable

import pytest

from specollama.backends.ollama.schema import Message
from specollama.config.endpoints import Endpoint
from specollama.config.settings import DraftRef, FileRef, ModelRef, PairSettings, PromptLookup
from specollama.pairs.pair import Pair
from specollama.pairs.request import ChatInput
from specollama.server.embedded.default_models import default_models
from specollama.server.embedded.serve import RunningServer
from specollama.spec_decode.types import Route, SamplingOptions, ServerApi
from tests.support.scoring_replies import reply

NUMBERS = ChatInput(
    [Message(role="user", content="Count from one to ten in words, then once more.")],
    options={"temperature": 0, "num_predict": 32},
)
KEY = "SPECOLLAMA_TEST_KEY"


@pytest.fixture
def settings(embedded: RunningServer, monkeypatch: pytest.MonkeyPatch) -> Callable[..., PairSettings]:
    engine = embedded.engines["target"]
    monkeypatch.setenv(KEY, engine.headers["Authorization"].removeprefix("Bearer "))
    name = default_models()["target"].name
    target = ModelRef(name, Endpoint(engine.url, "a test", token_env=KEY), ServerApi.LLAMA_SERVER)
    return lambda *drafts, **given: PairSettings(None, target, drafts, **{"lookahead": 3, **given})


async def test_each_drafter_leaves_the_text_as_it_is(settings: Callable[..., PairSettings], embedded_url: str) -> None:
    async with Pair(settings(route=Route.PLAIN), os.environ) as pair:
        plain, alone, _ = await reply(pair, NUMBERS)
    assert len(plain) > 20
    served = ModelRef("draft", Endpoint(embedded_url, "a test"))
    drafters: list[DraftRef] = [served, FileRef(default_models()["draft"]), PromptLookup.LOOKUP]
    for drafter in drafters:
        async with Pair(settings(drafter, route=Route.SCORING), os.environ) as pair:
            text, stats, status = await reply(pair, NUMBERS)
        assert text == plain, drafter
        assert status.startswith("speculation: on (scoring, llama-server, one request a round, lookahead 3")
        assert (stats.route, stats.eval_count) == (Route.SCORING, alone.eval_count)
        assert stats.drafted > 0
        if drafter is not PromptLookup.LOOKUP:
            assert stats.accepted > 0.5 * stats.tested


async def test_the_real_one_is_measured_once_and_then_decided_on(settings: Callable[..., PairSettings]) -> None:
    async with Pair(settings(PromptLookup.LOOKUP, route=Route.AUTO, lookahead="auto"), os.environ) as pair:
        route = await pair.scoring_route()
        assert route is not None
        text, stats, _ = await reply(pair, NUMBERS)
        opened = await route.open_models(pair.settings)
        measured = opened.known_profile(SamplingOptions(temperature=0))
        assert measured is not None
        assert measured.plain is not None
        assert {1, 8} <= set(measured.passes) <= {1, 2, 4, 8}
    assert text
    assert stats.route in (Route.SCORING, Route.PLAIN)
