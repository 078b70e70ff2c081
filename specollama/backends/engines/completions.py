"""/v1/completions of vLLM and TensorRT-LLM, with and without streaming."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Mapping, Sequence
from contextlib import aclosing
from typing import Any

from pydantic import BaseModel

from specollama.backends.engines.base import DrawSettings, PromptPosition, StreamPiece, seed_field
from specollama.backends.engines.chat_completions import done_reason
from specollama.backends.engines.client import EngineClient


class Logprobs(BaseModel):
    """The sampled tokens of a choice, one entry for each."""

    tokens: list[str]
    token_logprobs: list[float | None]
    top_logprobs: list[dict[str, float] | None] | None = None


class Choice(BaseModel):
    """The completion of prompt number `index`. `token_ids`: from TensorRT-LLM, if detokenising was switched off."""

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
    """The body of one request for all rows. `fields`: sampling and output options by the engine's names."""
    prompts = [list(place.tokens) for place in places]
    return {"model": model, "prompt": prompts, "max_tokens": 1, **fields, **seed_field(draws.request_seed(places))}


def choices_by_prompt(server: EngineClient, answer: Completion, prompts: int) -> list[Choice]:
    """The choices in the order of the prompts. Raises BrokenReply unless each prompt has exactly one."""
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
    """Stream the rest of a reply. The last piece has the count of tokens without text. Raises EndpointError."""
    body = {
        "model": model,
        "prompt": list(place.tokens),
        "stream": True,
        "stream_options": {"include_usage": True},
        **({} if limit is None else {"max_tokens": limit}),
        **sampling,
        **seed_field(seed),
    }
    pieces, end = 0, None
    async with aclosing(server.events("/v1/completions", body)) as events:
        async for event, _ in events:
            chunk = server.validate(event, _Chunk)
            if chunk.error is not None:
                raise server.refusal(chunk.error, 200)
            for choice in chunk.choices[:1]:
                if choice.text:
                    pieces += 1
                    yield StreamPiece(choice.text)
                end = choice.finish_reason or end
            if end and chunk.usage is not None:
                sampled = (chunk.usage.completion_tokens or 0) - (end == "stop")
                yield StreamPiece("", max(0, sampled - pieces), done_reason(end))
                return
    if end:
        yield StreamPiece("", end=done_reason(end))
        return
    raise server.broken_reply("the reply ended before its last event (no finish_reason)")
