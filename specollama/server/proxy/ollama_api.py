"""Ollama's own API: answered for pairs, passed on for all else."""

from __future__ import annotations

import asyncio
import hashlib
from collections.abc import AsyncGenerator
from contextlib import aclosing
from pathlib import Path
from typing import Any

import httpx
from starlette.requests import Request
from starlette.responses import PlainTextResponse, Response

from specollama.backends.http import read_json
from specollama.backends.ollama.model_name import full_name
from specollama.backends.ollama.request_json import read_object
from specollama.backends.ollama.request_validation import is_no_time
from specollama.backends.ollama.schema import RunningModel
from specollama.config.settings import FileRef
from specollama.errors import ApiError, SpecollamaError, one_line
from specollama.pairs.answer import Chunk, PairResponse
from specollama.pairs.ollama_response import ReplyWriter
from specollama.pairs.pool import PairEntry
from specollama.server.http.responses import LinesResponse, json_bytes, json_line, json_response, run_until_disconnect
from specollama.server.proxy.config_generation import ConfigGeneration, Listed, generation_of
from specollama.server.proxy.errors import error_for
from specollama.server.proxy.request_limits import BOUND, limit_body
from specollama.server.proxy.request_record import RequestRecord, record_of
from specollama.server.proxy.upstream import Upstream

UPLOADS = "/api/blobs/"
"""Whole models: passed on as they come, whatever their size."""

_MANAGING = ("/api/copy", "/api/delete", "/api/push", "/api/create")
_LONGEST = 500  # characters of a reason in a header
_NO_END = "2318-01-01T00:00:00Z"  # of a model that stays until it is unloaded: `ollama ps` says "Forever"
_NEVER = "0001-01-01T00:00:00Z"  # what Go prints for no time at all


async def root(_: Request) -> Response:
    return PlainTextResponse("Ollama is running")


async def generate(request: Request) -> Response:
    return await _reply(request, chat=False)


async def chat(request: Request) -> Response:
    return await _reply(request, chat=True)


async def tags(request: Request) -> Response:
    return json_response({"models": await models(generation_of(request))})


async def models(generation: ConfigGeneration) -> list[dict[str, Any]]:
    """The pairs, each as its target under its own name, and the models of all servers."""
    found = await generation.models()
    pairs = generation.pool.pairs.values()
    return [_as_pair(opened, generation, found) for opened in pairs] + [
        entry for entry, _, _ in found if generation.pool.get(entry["name"]) is None
    ]


async def ps(request: Request) -> Response:
    """The models that the servers have in memory, and the pairs whose models are in memory here."""
    generation = generation_of(request)
    here = [entry for opened in generation.pool.pairs.values() if (entry := _in_memory(opened))]
    try:
        listed = await generation.merge_listings("/api/ps")
    except ApiError:
        if not here:
            raise
        listed = []
    return json_response({"models": [*here, *(entry for entry, _, _ in listed)]})


def _in_memory(opened: PairEntry) -> dict[str, Any] | None:
    """A pair whose models this process holds, as /api/ps lists a model."""
    models = opened.pair.models_in_process
    if models is None:
        return None
    entry = RunningModel(
        name=opened.name,
        model=opened.name,
        size=models.size,
        expires_at=_NO_END,
        context_length=models.context_length,
    )
    return entry.body()


async def show(request: Request) -> Response:
    """For a pair: what its target's server says of the target, and what is configured."""
    generation = generation_of(request)
    body, raw = read_object(await request.body())
    opened = generation.pool.get(body.get("model") or body.get("name")) if body else None
    if opened is None or body is None:
        return await forward(request, body, raw)
    record_of(request).pair = opened.name
    target, pair_entry = opened.settings.target, {"specollama": describe_pair(opened)}
    if isinstance(target, FileRef):
        told = await asyncio.to_thread(_of_file, target.path, verbose=body.get("verbose") is True)
        return json_response({**told, **pair_entry})
    if opened.pair.is_without_ollama:  # its engine has no such call
        return json_response({"details": {}, "model_info": {}, "capabilities": ["completion"], **pair_entry})
    asked = {name: value for name, value in body.items() if name != "name"}
    asked["model"] = target.model
    response = await generation.upstream_of(opened).json("POST", "/api/show", asked)
    if response.is_error:
        return Response(response.content, response.status_code, media_type=response.headers.get("content-type"))
    return json_response({**_described(response), **pair_entry})


def _described(response: httpx.Response) -> dict[str, Any]:
    """What a server says of a model. Raises ApiError 502."""
    try:
        described = read_json(response.content)
    except ValueError:
        described = None
    if not isinstance(described, dict):
        raise ApiError(502, f"{response.url}: it isn't answered as Ollama does")
    return described


async def other(request: Request) -> Response:
    """What isn't known here is a server's matter, uploads included."""
    path, generation = request.scope["path"], generation_of(request)
    if path.startswith(UPLOADS):
        return await generation.default.forward(request)
    raw = await request.body()
    body, raw = read_object(raw) if path.startswith((*BOUND, *_MANAGING)) else (None, raw)
    if body is None:
        return await run_until_disconnect(request, generation.default.forward(request, raw))
    if path.startswith(_MANAGING):
        _refuse_pairs(body, generation)
    limited = limit_body(path, body, generation.serve, {})
    note_request(request, body, None)
    return await forward(request, limited, raw if limited is body else json_bytes(limited))


def _refuse_pairs(body: dict[str, Any], generation: ConfigGeneration) -> None:
    """Raises ApiError for what can be done with a model alone."""
    for field in ("model", "name", "source", "destination", "from"):
        if opened := generation.pool.get(body.get(field)):
            target = opened.settings.target
            raise ApiError(
                400, f"{opened.name} is a pair in this proxy's configuration, not a model; its target is {target.model}"
            )


async def forward(request: Request, body: dict[str, Any] | None, raw: bytes) -> Response:
    """The same request to the server that has its model; for a pair's name, to its target.

    `body`: what `raw` holds; None where that is no object.
    """
    generation = generation_of(request)
    model = body.get("model") if body else None
    opened = generation.pool.get(model)
    upstream, own = target_of(opened, generation) if opened else await generation.locate_model(model)
    if body is not None and own is not None and full_name(own) != full_name(str(model)):
        raw = json_bytes({**body, "model": own})
    return await run_until_disconnect(request, upstream.forward(request, raw))


def target_of(opened: PairEntry, generation: ConfigGeneration) -> tuple[Upstream, str]:
    """The server of a pair's target, and its name there. Raises ApiError for a target that no Ollama has."""
    if opened.pair.is_without_ollama or isinstance(opened.settings.target, FileRef):
        raise ApiError(400, f"the target of {opened.name} isn't on an Ollama, which alone could do this")
    return generation.upstream_of(opened), opened.settings.target.model


async def _reply(request: Request, *, chat: bool) -> Response:
    generation = generation_of(request)
    body, raw = read_object(await request.body())
    if body is None:
        return await forward(request, body, raw)
    opened = generation.pool.find(body.get("model"))
    limits = opened.settings.options if opened else {}
    limited = limit_body(request.scope["path"], body, generation.serve, limits)
    note_request(request, body, opened)
    if opened is None:
        return await forward(request, limited, raw if limited is body else json_bytes(limited))
    if is_no_time(body.get("keep_alive")) and not body.get("messages" if chat else "prompt"):
        await opened.pair.unload(draft=generation.pool.get(body.get("model")) is opened)
        if opened.pair.is_without_ollama:
            return json_response(ReplyWriter(str(body["model"]), chat).unloaded().body())
    answer = PairResponse(opened, limited, chat)
    return await run_until_disconnect(request, _answered(answer, record_of(request), generation))


async def _answered(answer: PairResponse, record: RequestRecord, generation: ConfigGeneration) -> Response:
    first, rest = await first_chunk(answer, record, stats=generation.serve.stats)
    headers = speculation_headers(answer)
    if answer.is_streaming:
        return LinesResponse(_lines(first, rest, record), headers=headers, media_type="application/x-ndjson")
    await rest.aclose()
    return json_response(first, headers=headers)


async def first_chunk(
    answer: PairResponse, record: RequestRecord, *, stats: bool
) -> tuple[Chunk, AsyncGenerator[Chunk, None]]:
    """The first chunk, and the rest of them: a refusal before any still gets a status of its own."""
    chunks = _noted(answer, record, stats=stats)
    try:
        return await anext(chunks), chunks
    except BaseException:
        await chunks.aclose()
        raise


async def _noted(answer: PairResponse, record: RequestRecord, *, stats: bool) -> AsyncGenerator[Chunk, None]:
    async with aclosing(answer.chunks()) as chunks:
        async for chunk in chunks:
            record.stats = answer.stats
            if not stats:
                chunk.pop("specollama", None)
            yield chunk


async def _lines(first: Chunk, rest: AsyncGenerator[Chunk, None], record: RequestRecord) -> AsyncGenerator[bytes, None]:
    async with aclosing(rest):
        yield json_line(first)
        try:
            async for chunk in rest:
                yield json_line(chunk)
        except (ApiError, SpecollamaError) as error:
            record.error = str(error)
            yield json_line({"error": error_for(error).text})


def note_request(request: Request, body: dict[str, Any], opened: PairEntry | None) -> None:
    """For the log: which model, and the client's text only where the configuration asks for it."""
    record = record_of(request)
    record.model = str(body["model"])[:200] if body.get("model") is not None else None
    record.pair = opened.name if opened else None
    if generation_of(request).serve.log_prompts:
        record.prompt = body.get("messages", body.get("prompt"))


def speculation_headers(answer: PairResponse) -> dict[str, str]:
    headers = {"x-specollama-pair": answer.entry.name, "x-specollama-route": str(answer.stats.route)}
    if answer.stats.reason:
        headers["x-specollama-reason"] = one_line(answer.stats.reason)[:_LONGEST].encode("ascii", "replace").decode()
    return headers


def describe_pair(opened: PairEntry) -> dict[str, Any]:
    """What is configured of a pair."""
    settings = opened.settings
    return {
        "pair": opened.name,
        "target": settings.target.model,
        "draft": settings.draft.model if settings.draft else None,
        "route": str(settings.route),
        "rule": str(settings.rule),
        "lookahead": settings.lookahead,
        "lanes": settings.lanes,
    }


def _of_file(path: Path, *, verbose: bool) -> dict[str, Any]:
    """What a GGUF file that no server has says of itself."""
    from specollama.server.embedded import model_card  # here, since it needs the package gguf, as the file itself did

    return model_card.show_response(model_card.ModelCard.read(path.stem, path), verbose=verbose)


def _as_pair(opened: PairEntry, generation: ConfigGeneration, found: list[Listed]) -> dict[str, Any]:
    """The target's entry under the pair's name; the digest is its own: clients take those of one digest for one."""
    target, upstream = full_name(opened.settings.target.model), generation.upstream_of(opened)
    own = [entry for entry, place, name in found if place is upstream and full_name(name) == target]
    blank = {"modified_at": _NEVER, "size": 0, "digest": "", "details": {}}
    entry = {**blank, **(own[0] if own else {}), "name": opened.name, "model": opened.name}
    digest = hashlib.sha256(f"{entry['digest']} {opened.name}".encode()).hexdigest()
    return {**entry, "digest": digest if entry["digest"] else ""}
