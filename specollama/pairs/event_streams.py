"""Filters over a reply's events: plain replies, replies that fail before the first token, and thinking."""

from __future__ import annotations

from collections.abc import AsyncGenerator, AsyncIterator
from dataclasses import replace
from typing import Any

from specollama.backends.ollama.schema import ChatReply, GenerateReply
from specollama.errors import Refused
from specollama.pairs.routes.base import NotSpeculated
from specollama.pairs.thinking import OPENING_TAG, ThinkingSplitter
from specollama.spec_decode.events import Done, Event, Status, Text, ToolCalls
from specollama.spec_decode.metrics import Stats
from specollama.spec_decode.types import DoneReason, Origin, Token


def text_and_tool_calls(chunk: ChatReply | GenerateReply) -> tuple[str, str, list[dict[str, Any]]]:
    """Answer text, thinking text and tool calls of one chunk."""
    if isinstance(chunk, GenerateReply):
        return chunk.response, chunk.thinking or "", []
    return chunk.message.content, chunk.message.thinking or "", chunk.message.tool_calls or []


def _probabilities(chunk: ChatReply | GenerateReply) -> tuple[float | None, tuple[Token, ...]]:
    """Log-probability and top tokens of a chunk's only token; None and () for a chunk with several tokens."""
    if chunk.logprobs is None or len(chunk.logprobs) != 1:
        return None, ()
    [entry] = chunk.logprobs
    return entry.logprob, tuple(Token(each.token, each.logprob) for each in entry.top_logprobs or [])


async def plain_events(
    chunks: AsyncIterator[ChatReply] | AsyncIterator[GenerateReply], stats: Stats
) -> AsyncGenerator[Event, None]:
    """Yield the events of a reply from the target's server without speculation, and update `stats`."""
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


async def fall_back_if_empty(events: AsyncIterator[Event], seed: int) -> AsyncGenerator[Event, None]:
    """Yield the events of a speculated reply. Raises NotSpeculated if it failed before its first token.

    The target's own chat endpoint then answers better than a raw stream, because it parses the model's special tokens.
    The same holds if the target refuses a raw request (status 400), which it may accept as a chat. `seed`: the sampling
    seed of the reply's first token.
    """
    shown, first = False, None
    try:
        async for event in events:
            if isinstance(event, Status) and first is None:
                first = event  # held back until there is text, so that no status is revoked
            elif isinstance(event, Status) and not shown:
                raise NotSpeculated(event.detail, seed)
            else:
                if first is not None and not shown:
                    yield first
                shown = True
                yield event
    except Refused as error:
        if shown or error.status != 400:
            raise
        raise NotSpeculated(str(error), seed) from error


async def split_thinking(events: AsyncIterator[Event], prompt: str, thinks: bool) -> AsyncGenerator[Event, None]:
    """Yield the events, with the text of a thinking model marked as thinking or answer."""
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
