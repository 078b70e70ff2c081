"""A question to a pair, and the whole of its reply."""

from __future__ import annotations

from contextlib import aclosing
from typing import Any

from specollama.backends.ollama.schema import Message
from specollama.config.settings import PairSettings
from specollama.pairs.pair import Pair
from specollama.pairs.request import ChatInput
from specollama.tools.bench import CollectedReply, collect_reply

QUESTION = "Name the planets of the solar system in order."


def ask(prompt: str = QUESTION, **options: Any) -> ChatInput:
    return ChatInput([Message(role="user", content=prompt)], options)


async def reply(settings: PairSettings, conversation: ChatInput) -> CollectedReply:
    async with Pair(settings, {}) as pair, aclosing(pair.reply(conversation)) as events:
        return await collect_reply(events)
