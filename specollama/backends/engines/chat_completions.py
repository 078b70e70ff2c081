"""The parts of OpenAI's API that all engines share: the model list, and a chat as a stream."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Mapping, Sequence
from contextlib import aclosing
from typing import Any

from pydantic import BaseModel

from specollama.backends.engines.base import DrawSettings, StreamPiece, seed_field
from specollama.backends.engines.client import EngineClient
from specollama.errors import ModelMissing
from specollama.spec_decode.types import DoneReason


class ListedModel(BaseModel):
    """An entry of /v1/models. `owned_by` is the engine's own name."""

    id: str
    owned_by: str = ""
    max_model_len: int | None = None


class _Models(BaseModel):
    data: list[ListedModel]


class _Delta(BaseModel):
    content: str | None = None
    reasoning_content: str | None = None
    reasoning: str | None = None  # the same, by vLLM's newer name


class _Choice(BaseModel):
    delta: _Delta = _Delta()
    finish_reason: str | None = None


class _Usage(BaseModel):
    prompt_tokens: int


class _Counted(BaseModel):
    usage: _Usage


class _Chunk(BaseModel):
    choices: list[_Choice] = []
    error: Any = None


async def list_models(server: EngineClient) -> dict[str, ListedModel]:
    """The models that a server lists, by name."""
    return {model.id: model for model in (await server.get("/v1/models", _Models)).data}


async def find_model(server: EngineClient, name: str) -> ListedModel:
    """The model of that name. Raises ModelMissing, which lists the models that the server has."""
    listed = await list_models(server)
    if name not in listed:
        available = f"there: {', '.join(listed)}" if listed else "it has no models"
        raise ModelMissing(f"{server.url} has no model {name!r} ({available})", url=server.url)
    return listed[name]


async def stream_chat(
    server: EngineClient,
    model: str,
    messages: Sequence[Mapping[str, Any]],
    limit: int | None,
    sampling: Mapping[str, Any],
    draws: DrawSettings,
) -> AsyncGenerator[StreamPiece, None]:
    """Stream POST /v1/chat/completions. `sampling`: options by the engine's names. Raises EndpointError."""
    seed = draws.seed_at(0)
    body = {
        "model": model,
        "messages": [dict(message) for message in messages],
        "stream": True,
        **({} if limit is None else {"max_tokens": limit}),
        **sampling,
        **seed_field(seed),
    }
    missing = ""
    async with aclosing(server.events("/v1/chat/completions", body)) as events:
        async for event, _ in events:
            chunk = server.validate(event, _Chunk)
            if chunk.error is not None:
                raise server.refusal(chunk.error, 200)
            for choice in chunk.choices[:1]:
                if choice.delta.content:
                    yield StreamPiece(choice.delta.content)
                if choice.delta.reasoning_content or choice.delta.reasoning:
                    missing = f"{server.kind.name} takes the thinking out of its replies: it isn't shown"
                if choice.finish_reason:
                    yield StreamPiece("", end=done_reason(choice.finish_reason), missing=missing)
                    return
    raise server.broken_reply("the reply ended before its last event (no finish_reason)")


async def count_chat_tokens(server: EngineClient, model: str, messages: Sequence[Mapping[str, Any]]) -> int:
    """The prompt tokens of a chat, from `usage` of a one-token reply: the engine doesn't return the prompt itself."""
    body = {"model": model, "messages": [dict(message) for message in messages], "max_tokens": 1, "temperature": 0}
    return (await server.post("/v1/chat/completions", body, _Counted)).usage.prompt_tokens


def done_reason(reason: str) -> DoneReason:
    """OpenAI's `finish_reason` as Ollama's done reason."""
    return DoneReason.LENGTH if reason == "length" else DoneReason.STOP
