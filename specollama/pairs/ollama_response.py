"""Translates events into Ollama's JSON objects: one for each piece of text, the last with the counters."""

from __future__ import annotations

import time
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any, TypeVar

from specollama.backends.ollama.schema import ChatReply, GenerateReply, Message, Reply
from specollama.spec_decode.events import Done, Text, ToolCalls

SomeReply = TypeVar("SomeReply", bound=Reply)


@dataclass(frozen=True, slots=True)
class ReplyWriter:
    """Writes the replies of one request. `model`: as it was asked for."""

    model: str
    chat: bool

    def text(self, event: Text) -> Reply:
        """One piece of the answer, or of the thinking before it."""
        content, thinking = ("", event.text) if event.thinking else (event.text, None)
        return self._reply(content, thinking)

    def calls(self, event: ToolCalls) -> Reply:
        reply = self._reply("", None)
        if isinstance(reply, ChatReply):
            reply.message.tool_calls = [dict(call) for call in event.calls]
        return reply

    def done(self, event: Done, prepared: int, context: list[int] | None) -> Reply:
        """The last reply. `prepared`: nanoseconds until the prompt was there, which Ollama books as loading."""
        reply, stats = self._reply("", None), event.stats
        first = max(stats.first_token_duration, prepared)
        counts = {
            "total_duration": stats.total_duration,
            "load_duration": prepared,
            "prompt_eval_count": stats.prompt_eval_count,
            "prompt_eval_duration": first - prepared,
            "eval_count": stats.eval_count,
            "eval_duration": max(0, stats.total_duration - first),
        }
        reply = reply.model_copy(update={name: count or None for name, count in counts.items()})
        reply.done, reply.done_reason = True, str(event.reason)
        if isinstance(reply, GenerateReply):
            reply.context = context
        return reply

    def loaded(self) -> Reply:
        """The answer to a request without a prompt."""
        return self._without_text("load")

    def unloaded(self) -> Reply:
        """The answer to a request without a prompt whose `keep_alive` is 0."""
        return self._without_text("unload")

    def _without_text(self, reason: str) -> Reply:
        reply = self._reply("", None)
        reply.done, reply.done_reason = True, reason
        return reply

    def _reply(self, content: str, thinking: str | None) -> Reply:
        if self.chat:
            message = Message(role="assistant", content=content, thinking=thinking)
            return ChatReply(model=self.model, created_at=utc_now(), message=message)
        return GenerateReply(model=self.model, created_at=utc_now(), response=content, thinking=thinking)


def join_replies(replies: list[SomeReply]) -> SomeReply:
    """What a request with `stream: false` gets: all texts and log-probabilities, the counts of the last."""
    last = replies[-1]
    last.logprobs = [entry for reply in replies for entry in reply.logprobs or []] or None
    if isinstance(last, ChatReply):
        pieces: list[Any] = [reply.message for reply in replies if isinstance(reply, ChatReply)]
        last.message.content = "".join(piece.content for piece in pieces)
    else:
        pieces = list(replies)
        pieces[-1].response = "".join(piece.response for piece in pieces)
    pieces[-1].thinking = "".join(piece.thinking or "" for piece in pieces) or None
    return last


def utc_now() -> str:
    """The time in UTC to the nanosecond, trailing zeros dropped as in Go."""
    seconds, nanoseconds = divmod(time.time_ns(), 10**9)
    whole = datetime.fromtimestamp(seconds, UTC).strftime("%Y-%m-%dT%H:%M:%S")
    fraction = f".{nanoseconds:09}".rstrip("0").rstrip(".")
    return f"{whole}{fraction}Z"
