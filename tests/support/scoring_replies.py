"""Replies of pairs on engines, gathered."""

from __future__ import annotations

import os
from collections.abc import Mapping
from contextlib import ExitStack, aclosing
from typing import Any

from specollama.backends.ollama.schema import Message
from specollama.config.endpoints import Endpoint
from specollama.config.settings import DraftRef, ModelRef, PairSettings, PromptLookup
from specollama.pairs.pair import Pair
from specollama.pairs.request import ChatInput
from specollama.spec_decode.events import Done, Status, Text
from specollama.spec_decode.metrics import Stats
from specollama.spec_decode.types import Route, ServerApi
from tests.support.fake_engines import FAKES, NAME, Fake
from tests.support.serving import serving

COLD: Mapping[str, Any] = {"temperature": 0, "num_predict": 40}
CHAT = ChatInput([Message(role="user", content="Tell me.")], options=COLD)


def settings(
    api: str | None, *urls: str, drafts: tuple[DraftRef, ...] = (PromptLookup.LOOKUP,), **given: Any
) -> PairSettings:
    first, *others = [Endpoint(url, "a test") for url in urls]
    target = ModelRef(NAME, first, ServerApi(api) if api else None, tuple(others))
    return PairSettings(None, target, drafts, **{"route": Route.SCORING, "lookahead": 4, **given})


async def reply(pair: Pair, ask: Any = CHAT) -> tuple[str, Stats, str]:
    """The text, the counters, and the status line."""
    text, status = "", ""
    async with aclosing(pair.reply(ask)) as events:
        async for event in events:
            if isinstance(event, Text):
                text += event.text
            if isinstance(event, Status) and not status:
                status = str(event)
            if isinstance(event, Done):
                return text, event.stats, status
    raise AssertionError("a reply ends with Done")


async def told(fake: Fake, api: str, ask: Any = CHAT, **given: Any) -> tuple[str, Stats, str]:
    """One reply of a pair on one fake engine."""
    with serving(fake) as url:
        async with Pair(settings(api, url, **given), os.environ) as pair:
            return await reply(pair, ask)


def fakes(api: str, count: int, stack: ExitStack) -> tuple[list[Fake], list[str]]:
    servers = [FAKES[api]() for _ in range(count)]
    return servers, [stack.enter_context(serving(server)) for server in servers]
