"""llama-server's events into Ollama's replies: pure, one step after the other."""

from __future__ import annotations

import json
import time
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

from specollama.backends.ollama.schema import ChatReply, GenerateReply, Logprob, Message, TopLogprob
from specollama.pairs.ollama_response import SomeReply, utc_now
from specollama.spec_decode.types import DoneReason


@dataclass(frozen=True, slots=True)
class Step:
    """One event: some text, or the end of the reply with its counts (then `done` holds the reason)."""

    text: str = ""
    thinking: str = ""
    logprobs: list[Logprob] = field(default_factory=list)
    done: DoneReason | None = None
    timings: dict[str, Any] = field(default_factory=dict)
    tool_calls: list[dict[str, Any]] = field(default_factory=list)

    @property
    def shown(self) -> bool:
        """Whether it gets a chunk before the end: without text it's dropped, its log-probabilities too."""
        return bool(self.text or self.thinking)


def completion_step(event: dict[str, Any], top: int | None) -> Step:
    """An event of /completion. `top` entries a row; None: no log-probabilities."""
    if event["stop"]:
        limit = event["stop_type"] == "limit"
        return Step(
            text=event["content"],
            done=DoneReason.LENGTH if limit else DoneReason.STOP,
            timings=event["timings"],
        )
    return Step(event["content"], logprobs=_logprobs(event.get("completion_probabilities"), top))


class ChatSteps:
    """Events of /v1/chat/completions; the pieces of tool calls are gathered until the end."""

    def __init__(self, top: int | None) -> None:
        self._top = top
        self._calls: dict[int, dict[str, str]] = {}

    def step(self, event: dict[str, Any]) -> Step:
        if not event.get("choices"):
            return Step()
        choice = event["choices"][0]
        delta = choice["delta"]
        self._gather(delta.get("tool_calls") or [])
        text, thinking = delta.get("content") or "", delta.get("reasoning_content") or ""
        logprobs = _logprobs((choice.get("logprobs") or {}).get("content"), self._top)
        if choice.get("finish_reason") is None:
            return Step(text, thinking, logprobs)
        reason = DoneReason.LENGTH if choice["finish_reason"] == "length" else DoneReason.STOP
        return Step(text, thinking, logprobs, reason, event.get("timings", {}), self._tool_calls())

    def _gather(self, pieces: Iterable[dict[str, Any]]) -> None:
        for piece in pieces:
            call = self._calls.setdefault(piece["index"], {"id": "", "name": "", "arguments": ""})
            function = piece.get("function") or {}
            call["id"] += piece.get("id") or ""
            call["name"] += function.get("name") or ""
            call["arguments"] += function.get("arguments") or ""

    def _tool_calls(self) -> list[dict[str, Any]]:
        return [
            {"id": call["id"], "function": {"index": index, "name": call["name"], "arguments": arguments}}
            for index, call in sorted(self._calls.items())
            for arguments in [json.loads(call["arguments"] or "{}")]
        ]


@dataclass(frozen=True, slots=True)
class Clock:
    """When a request began and when its model was ready, in nanoseconds of the monotonic clock."""

    started: int
    loaded: int

    def durations(self) -> dict[str, int]:
        return {
            "total_duration": time.monotonic_ns() - self.started,
            "load_duration": self.loaded - self.started,
        }


def generate_reply(model: str, step: Step, clock: Clock) -> GenerateReply:
    reply = GenerateReply(response=step.text, thinking=step.thinking or None)
    return _filled(reply, model, step, clock)


def chat_reply(model: str, step: Step, clock: Clock) -> ChatReply:
    message = Message(
        role="assistant",
        content=step.text,
        thinking=step.thinking or None,
        tool_calls=step.tool_calls or None,
    )
    return _filled(ChatReply(message=message), model, step, clock)


def _filled(reply: SomeReply, model: str, step: Step, clock: Clock) -> SomeReply:
    reply.model = model
    reply.created_at = utc_now()
    reply.logprobs = step.logprobs or None
    if step.done:
        counts = {**clock.durations(), **_counts(step.timings)}
        reply = reply.model_copy(update={name: count or None for name, count in counts.items()})
        reply.done, reply.done_reason = True, step.done
    return reply


def _counts(timings: dict[str, Any]) -> dict[str, int]:
    return {
        "prompt_eval_count": timings["cache_n"] + timings["prompt_n"],
        "prompt_eval_duration": round(timings["prompt_ms"] * 1e6),
        "eval_count": timings["predicted_n"],
        "eval_duration": round(timings["predicted_ms"] * 1e6),
    }


def _logprobs(entries: list[dict[str, Any]] | None, top: int | None) -> list[Logprob]:
    if top is None:
        return []
    return [_logprob(entry, top) for entry in entries or []]


def _logprob(entry: dict[str, Any], top: int) -> Logprob:
    alternatives = [
        TopLogprob(token=each["token"], logprob=each["logprob"], bytes=_bytes(each["token"]))
        for each in entry["top_logprobs"][:top]
    ]
    token = entry["token"]
    return Logprob(token=token, logprob=entry["logprob"], bytes=_bytes(token), top_logprobs=alternatives or None)


def _bytes(text: str) -> list[int] | None:
    """Of the text shown; llama-server's own bytes are the token's, which Ollama drops."""
    return list(text.encode()) or None
