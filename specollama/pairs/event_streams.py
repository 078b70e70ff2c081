"""Wrappers of a reply's event stream: fallback when nothing came, and splitting off a model's thinking."""

from __future__ import annotations

from collections.abc import AsyncGenerator, AsyncIterator
from dataclasses import replace
from typing import Any

from specollama.backends.ollama.schema import ChatReply, GenerateReply
from specollama.errors import Refused
from specollama.pairs.thinking import OPENING_TAG, ThinkingSplitter
from specollama.spec_decode.events import Done, Event, Status, Text, ToolCalls
from specollama.spec_decode.metrics import Stats
from specollama.spec_decode.types import DoneReason, Origin, Token


def text_and_tool_calls(chunk: ChatReply | GenerateReply) -> tuple[str, str, list[dict[str, Any]]]:
    """Answer, thinking and calls of tools of one line."""
    if isinstance(chunk, GenerateReply):
        return chunk.response, chunk.thinking or "", []
    return chunk.message.content, chunk.message.thinking or "", chunk.message.tool_calls or []


def _probabilities(chunk: ChatReply | GenerateReply) -> tuple[float | None, tuple[Token, ...]]:
    """The log-probability of a line's only token, and the best tokens at its place; nothing for several tokens."""
    if chunk.logprobs is None or len(chunk.logprobs) != 1:
        return None, ()
    [entry] = chunk.logprobs
    return entry.logprob, tuple(Token(each.token, each.logprob) for each in entry.top_logprobs or [])


async def plain_events(
    chunks: AsyncIterator[ChatReply] | AsyncIterator[GenerateReply], stats: Stats
) -> AsyncGenerator[Event, None]:
    """The events of the target's own answer, as its lines come; `stats` are counted along."""
    async for chunk in chunks:
        content, thinking, calls = text_and_tool_calls(chunk)
        if thinking:
            yield Text(thinking, Origin.PLAIN, thinking=True)
        if content:
            stats.plain += 1
            logprob, best = _probabilities(chunk)
            yield Text(content, Origin.PLAIN, logprob=logprob, top=best)
        if calls:
            yield ToolCalls(tuple(calls))
        if chunk.done:
            stats.prompt_eval_count = chunk.prompt_eval_count or 0
            stats.eval_count = chunk.eval_count or stats.plain
            yield Done(DoneReason.LENGTH if chunk.done_reason == "length" else DoneReason.STOP, stats)


async def fall_back_if_empty(events: AsyncIterator[Event]) -> AsyncGenerator[Event | str, None]:
    """The events of a speculated reply. Yields the fallback reason if the reply failed before its first token.

    The target's own chat endpoint then answers better than the rest of a raw stream would: it knows its model's
    markers. So does it when the target refuses a raw request (status 400) but may not refuse the chat.
    """
    shown, first = False, None
    try:
        async for event in events:
            if isinstance(event, Status) and first is None:
                first = event  # kept back until there is text, so that no status is taken back
            elif isinstance(event, Status) and not shown:
                yield event.detail
                return
            else:
                if first is not None and not shown:
                    yield first
                shown = True
                yield event
    except Refused as error:
        if shown or error.status != 400:
            raise
        yield str(error)


async def split_thinking(events: AsyncIterator[Event], prompt: str, thinks: bool) -> AsyncGenerator[Event, None]:
    """The events, with a thinking model's thinking marked."""
    if not thinks:
        async for event in events:
            yield event
        return
    splitter, last = ThinkingSplitter(prompt.rstrip().endswith(OPENING_TAG)), Text("", Origin.PLAIN)
    async for event in events:
        if isinstance(event, Text):
            last = event
            for text, thinking in splitter.feed(event.text):
                yield replace(event, text=text, thinking=thinking)
        else:
            if isinstance(event, Done):
                for text, thinking in splitter.end():
                    yield replace(last, text=text, thinking=thinking)
            yield event
