"""/v1/completions as vLLM and TensorRT-LLM answer it, whole and as a stream."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Mapping, Sequence
from contextlib import aclosing
from typing import Any

from pydantic import BaseModel

from specollama.backends.engines.base import DrawSettings, PromptPosition, StreamPiece, seed_field
from specollama.backends.engines.chat_completions import done_reason
from specollama.backends.engines.client import EngineClient


class Logprobs(BaseModel):
    """The tokens drawn for a choice, one entry each."""

    tokens: list[str]
    token_logprobs: list[float | None]
    top_logprobs: list[dict[str, float] | None] | None = None


class Choice(BaseModel):
    """What was drawn for the `index`th prompt. `token_ids`: TensorRT-LLM's, where it was told not to detokenise."""

    index: int
    text: str
    token_ids: list[int] | None = None
    logprobs: Logprobs | None = None
    finish_reason: str | None = None


class Completion(BaseModel):
    choices: list[Choice]


class _Usage(BaseModel):
    completion_tokens: int | None = None


class _Chunk(BaseModel):
    choices: list[Choice] = []
    usage: _Usage | None = None
    error: Any = None


def score_request_body(
    model: str, places: Sequence[PromptPosition], draws: DrawSettings, fields: Mapping[str, Any]
) -> dict[str, Any]:
    """One request for all rows. `fields`: how they are drawn and shown, by the engine's own names."""
    prompts = [list(place.tokens) for place in places]
    return {"model": model, "prompt": prompts, "max_tokens": 1, **fields, **seed_field(draws.request_seed(places))}


def choices_by_prompt(server: EngineClient, answer: Completion, prompts: int) -> list[Choice]:
    """The choices by prompt. Raises BrokenReply unless each prompt has one."""
    choices = sorted(answer.choices, key=lambda choice: choice.index)
    if [choice.index for choice in choices] != list(range(prompts)):
        raise server.broken_reply(f"{len(choices)} answers to {prompts} prompts")
    return choices


async def stream_completion(
    server: EngineClient,
    model: str,
    place: PromptPosition,
    limit: int | None,
    sampling: Mapping[str, Any],
    seed: int | None,
) -> AsyncGenerator[StreamPiece, None]:
    """The rest of a reply, piece by piece; the last has the count of tokens that no piece had."""
    body = {
        "model": model,
        "prompt": list(place.tokens),
        "stream": True,
        "stream_options": {"include_usage": True},
        **({} if limit is None else {"max_tokens": limit}),
        **sampling,
        **seed_field(seed),
    }
    shown, end = 0, None
    async with aclosing(server.events("/v1/completions", body)) as events:
        async for event, _ in events:
            chunk = server.validate(event, _Chunk)
            if chunk.error is not None:
                raise server.refusal(chunk.error, 200)
            for choice in chunk.choices[:1]:
                if choice.text:
                    shown += 1
                    yield StreamPiece(choice.text)
                end = choice.finish_reason or end
            if end and chunk.usage is not None:
                drawn = (chunk.usage.completion_tokens or 0) - (end == "stop")
                yield StreamPiece("", max(0, drawn - shown), done_reason(end))
                return
    if end:
        yield StreamPiece("", end=done_reason(end))
        return
    raise server.broken_reply("the reply ended before its last event (no finish_reason)")
