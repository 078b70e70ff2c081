"""What a user hears of a reply, and what must hold of it whatever the servers did."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from contextlib import aclosing
from dataclasses import dataclass, field
from typing import Any

from specollama.backends.ollama.schema import Message
from specollama.config.endpoints import Endpoint
from specollama.config.settings import ModelRef, PairSettings
from specollama.errors import EndpointError
from specollama.pairs.pair import Pair
from specollama.pairs.request import ChatInput
from specollama.spec_decode.events import Done, Event, Status, Text
from specollama.spec_decode.metrics import Stats
from specollama.spec_decode.types import DoneReason, Route

ENDLESS = 120  # seconds: only a reply that never ends takes so long


@dataclass
class Heard:
    """`error`: what the reply ended with in the place of a Done."""

    text: str = ""
    thinking: str = ""
    statuses: list[str] = field(default_factory=list)
    reason: DoneReason | None = None
    stats: Stats = field(default_factory=Stats)
    error: EndpointError | None = None

    def take(self, event: Event) -> None:
        assert self.reason is None, "nothing comes after the end"
        if isinstance(event, Status):
            self.statuses.append(str(event))
        elif isinstance(event, Text):
            assert event.text, "a piece of text has text"
            self.thinking += event.text if event.thinking else ""
            self.text += "" if event.thinking else event.text
        else:
            assert isinstance(event, Done)
            self.reason, self.stats = event.reason, event.stats

    def faithful(self, plain: str) -> None:
        """The text is plain's, or a beginning of it and one error on one line."""
        if self.error is None:
            assert self.text == plain
            assert self.reason is not None
        else:
            assert plain.startswith(self.text)
            assert self.reason is None
            assert "\n" not in str(self.error)
        self.orderly()

    def orderly(self) -> None:
        """One status at the beginning; a second one only where speculation ended on the way, for its own reason."""
        assert len(self.statuses) <= 2
        for status in self.statuses:
            assert "\n" not in status
        if self.error is None:
            assert self.statuses
        if len(self.statuses) == 2:
            assert self.statuses[0].startswith("speculation: on")
            assert self.statuses[1].startswith("speculation: off")
        if self.reason is not None and len(self.statuses) == 2:
            assert self.statuses[1] == f"speculation: off ({self.stats.notices[0]})"
            assert len(self.stats.notices) == 1
        if self.reason is not None and len(self.statuses) == 1:
            assert self.stats.notices == []
            off = self.statuses[0] == f"speculation: off ({self.stats.reason})"
            assert off or (self.statuses[0].startswith("speculation: on") and not self.stats.reason)

    @property
    def ended_plain(self) -> str:
        """Why speculation ended on the way."""
        assert len(self.statuses) == 2, self.statuses
        return self.statuses[1].removeprefix("speculation: off (").removesuffix(")")

    @property
    def plain(self) -> str:
        """Why nothing was speculated."""
        assert len(self.statuses) == 1, self.statuses
        assert self.statuses[0].startswith("speculation: off")
        return self.stats.reason


def question(content: str = "Sing.", /, **options: Any) -> ChatInput:
    return ChatInput([Message(role="user", content=content)], {"temperature": 0, **options})


def settings(target: str, draft: str | None = None, *, idle_timeout: float = 60, **chosen: Any) -> PairSettings:
    """Of the pair `target` and `draft`, on two servers or one. By lanes, so that nothing is measured."""
    ours = Endpoint(target, "a test", idle_timeout=idle_timeout)
    theirs = Endpoint(draft or target, "a test", idle_timeout=idle_timeout)
    given = {"route": Route.LANES, "lookahead": 4, **chosen}
    return PairSettings(None, ModelRef("target", ours), (ModelRef("draft", theirs),), **given)


async def heard(pair: Pair, conversation: ChatInput) -> Heard:
    """A reply to its end, or to the one error that ends it."""
    hearing = Heard()
    try:
        async with asyncio.timeout(ENDLESS), aclosing(pair.reply(conversation)) as events:
            async for event in events:
                hearing.take(event)
    except EndpointError as error:
        hearing.error = error
    return hearing


async def hear(chosen: PairSettings, conversation: ChatInput | None = None, environ: Mapping[str, str] = {}) -> Heard:
    """One reply of a pair of its own."""
    async with Pair(chosen, environ) as pair:
        return await heard(pair, conversation or question())
