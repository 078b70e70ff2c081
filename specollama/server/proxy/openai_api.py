"""OpenAI's API: answered for pairs by way of Ollama's own, passed on for all else."""

from __future__ import annotations

import secrets
from collections.abc import AsyncGenerator, Callable, Mapping
from contextlib import aclosing
from datetime import datetime
from typing import Any

from starlette.requests import Request
from starlette.responses import Response

from specollama.backends.ollama.model_name import full_name
from specollama.backends.ollama.request_json import read_object
from specollama.errors import ApiError, SpecollamaError
from specollama.pairs.answer import Chunk, PairResponse
from specollama.pairs.pool import PairEntry
from specollama.server.http.responses import LinesResponse, error_body, json_bytes, json_response, run_until_disconnect
from specollama.server.proxy import ollama_api
from specollama.server.proxy.config_generation import generation_of
from specollama.server.proxy.errors import error_for
from specollama.server.proxy.openai_translation import (
    Json,
    OpenAIResponseBuilder,
    Untranslatable,
    chat_body,
    completion_body,
)
from specollama.server.proxy.request_limits import limit_body
from specollama.server.proxy.request_record import RequestRecord, record_of

_NATIVE = {True: "/api/chat", False: "/api/generate"}
_Translate = Callable[[Mapping[str, Any], Mapping[str, Any]], Json]


async def chat(request: Request) -> Response:
    return await _reply(request, chat_body, chat=True)


async def completions(request: Request) -> Response:
    return await _reply(request, completion_body, chat=False)


async def models(request: Request) -> Response:
    listed = await ollama_api.models(generation_of(request))
    return json_response({"object": "list", "data": [_model(entry) for entry in listed]})


async def model(request: Request) -> Response:
    wanted = request.path_params["model"]
    for entry in await ollama_api.models(generation_of(request)):
        if full_name(entry["name"]) == full_name(wanted):
            return json_response(_model(entry) | {"id": wanted})
    raise ApiError(404, f"model '{full_name(wanted)}' not found")


async def _reply(request: Request, translate: _Translate, *, chat: bool) -> Response:
    generation = generation_of(request)
    asked, raw = read_object(await request.body())
    if asked is None:
        return await ollama_api.forward(request, asked, raw)
    opened, path = generation.pool.find(asked.get("model")), request.scope["path"]
    ollama_api.note_request(request, asked, opened)
    if opened is None:
        limited = limit_body(path, asked, generation.serve, {})
        return await ollama_api.forward(request, limited, raw if limited is asked else json_bytes(limited))
    options = opened.settings.options
    try:
        body = limit_body(_NATIVE[chat], translate(asked, options), generation.serve, options)
    except Untranslatable:
        return await _to_target(request, limit_body(path, asked, generation.serve, options), opened)
    wanted = asked.get("stream_options")
    usage = isinstance(wanted, Mapping) and wanted.get("include_usage") is True
    shaper = OpenAIResponseBuilder(str(asked["model"]), secrets.token_hex(6), chat, usage)
    answer = PairResponse(opened, body, chat)
    return await run_until_disconnect(
        request, _answered(answer, shaper, record_of(request), stats=generation.serve.stats)
    )


async def _to_target(request: Request, asked: Mapping[str, Any], opened: PairEntry) -> Response:
    """What can't be said in Ollama's own API: the target's server answers, under its model's name."""
    upstream, own = ollama_api.target_of(opened, generation_of(request))
    body = json_bytes({**asked, "model": own})
    return await run_until_disconnect(request, upstream.forward(request, body))


async def _answered(
    answer: PairResponse, shaper: OpenAIResponseBuilder, record: RequestRecord, *, stats: bool
) -> Response:
    first, rest = await ollama_api.first_chunk(answer, record, stats=stats)
    headers = ollama_api.speculation_headers(answer)
    if answer.is_streaming:
        headers["content-type"] = "text/event-stream"
        return LinesResponse(_events(first, rest, shaper, record), headers=headers)
    await rest.aclose()
    return json_response(shaper.whole(first), headers={**headers, "content-type": "application/json"})


async def _events(
    first: Chunk, rest: AsyncGenerator[Chunk, None], shaper: OpenAIResponseBuilder, record: RequestRecord
) -> AsyncGenerator[bytes, None]:
    async with aclosing(rest):
        for piece in shaper.pieces(first):
            yield _event(piece)
        try:
            async for chunk in rest:
                for piece in shaper.pieces(chunk):
                    yield _event(piece)
        except (ApiError, SpecollamaError) as error:
            record.error = str(error)
            fault = error_for(error)
            yield _event(error_body(record.path, fault.status, fault.text))
            return
        yield b"data: [DONE]\n\n"


def _event(body: Json) -> bytes:
    return b"data: " + json_bytes(body) + b"\n\n"


def _model(entry: Mapping[str, Any]) -> Json:
    return {
        "id": entry["name"],
        "object": "model",
        "created": _seconds(entry.get("modified_at")),
        "owned_by": "library",
    }


def _seconds(time: Any) -> int:
    """Since 1970; 0 for what is no time."""
    try:
        return max(0, int(datetime.fromisoformat(str(time)).timestamp()))
    except (ValueError, OverflowError):
        return 0
