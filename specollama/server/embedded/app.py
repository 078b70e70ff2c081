"""The routes: Ollama's native API over the served models, as an ASGI application."""

from __future__ import annotations

import time
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Mapping
from contextlib import aclosing, asynccontextmanager
from typing import Any, TypeVar

from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.middleware import Middleware
from starlette.requests import Request
from starlette.responses import PlainTextResponse, Response
from starlette.routing import Route

from specollama.backends.ollama import request_validation
from specollama.backends.ollama.model_name import full_name
from specollama.backends.ollama.schema import (
    ChatRequest,
    GenerateRequest,
    PsReply,
    Reply,
    ShowRequest,
    TagsReply,
    VersionReply,
)
from specollama.config.limits import REQUESTS, RequestLimits
from specollama.errors import ApiError
from specollama.pairs.ollama_response import join_replies
from specollama.server.embedded import endpoints, model_card
from specollama.server.embedded.served_model import ServedModel
from specollama.server.http.bodies import BodyReader
from specollama.server.http.guard import CORS, Guard
from specollama.server.http.origins import Origins
from specollama.server.http.paths import CanonicalPath
from specollama.server.http.responses import LinesResponse, json_line, json_response, run_until_disconnect

VERSION = "0.33.0"
"""The Ollama release whose behaviour this server has."""

Result = TypeVar("Result")


def make_app(
    models: Mapping[str, ServedModel],
    token: str | None = None,
    origins: Origins | None = None,
    limits: RequestLimits = REQUESTS,
) -> Starlette:
    """The application; it closes the engines when it shuts down. `token`: what requests must carry.

    `origins`: the web pages that may call; None: those that Ollama lets in where nothing is set.
    """
    routes = Routes(models)

    @asynccontextmanager
    async def lifespan(_: Starlette) -> AsyncIterator[None]:
        yield
        for model in models.values():
            await model.engine.close()

    return Starlette(
        routes=[
            Route("/", routes.root),
            Route("/api/version", routes.version),
            Route("/api/tags", routes.tags),
            Route("/api/ps", routes.ps),
            Route("/api/show", routes.show, methods=["POST"]),
            Route("/api/generate", routes.generate, methods=["POST"]),
            Route("/api/chat", routes.chat, methods=["POST"]),
        ],
        middleware=[
            Middleware(CanonicalPath),
            Middleware(Guard, token=token, origins=origins or Origins.read({})),
            CORS,
            Middleware(BodyReader, limits=limits),
        ],
        exception_handlers={ApiError: _fault, HTTPException: _http_exception},
        lifespan=lifespan,
    )


class Routes:
    """`models`: by their names, which are matched as Ollama matches them."""

    def __init__(self, models: Mapping[str, ServedModel]) -> None:
        self._models = {full_name(name): model for name, model in models.items()}

    async def root(self, _: Request) -> Response:
        return PlainTextResponse("Ollama is running")

    async def version(self, _: Request) -> Response:
        return json_response(VersionReply(version=VERSION).body())

    async def tags(self, _: Request) -> Response:
        cards = [model.card for model in self._models.values()]
        return json_response(TagsReply(models=[model_card.tags_entry(card) for card in cards]).body())

    async def ps(self, _: Request) -> Response:
        models = [model_card.ps_entry(model.card, model.engine.num_ctx) for model in self._models.values()]
        return json_response(PsReply(models=models).body())

    async def show(self, request: Request) -> Response:
        ask = request_validation.parse_body(await request.body(), ShowRequest)
        if not ask.model:
            raise ApiError(400, "model is required")
        model = self._find(ask.model, model_card.with_tag(ask.model))
        return json_response(model_card.show_response(model.card, verbose=ask.verbose))

    async def generate(self, request: Request) -> Response:
        started = time.monotonic_ns()
        ask = request_validation.parse_body(await request.body(), GenerateRequest)
        request_validation.check_limits(ask)
        model = self._find(ask.model, ask.model)
        return await _answered(request, endpoints.generate(model, ask, started), stream=ask.stream is not False)

    async def chat(self, request: Request) -> Response:
        started = time.monotonic_ns()
        ask = request_validation.parse_body(await request.body(), ChatRequest)
        request_validation.check_limits(ask)
        if not ask.model:
            raise ApiError(400, "model is required")
        model = self._find(ask.model, ask.model)
        return await _answered(request, endpoints.chat(model, ask, started), stream=ask.stream is not False)

    def _find(self, name: str, shown: str) -> ServedModel:
        model = self._models.get(full_name(name))
        if model is None:
            raise ApiError(404, f"model '{shown}' not found")
        return model


async def _answered(request: Request, answer: Awaitable[endpoints.EndpointReply], *, stream: bool) -> Response:
    """Answer, or give up at once when the client goes away: the engine's slot is then free again."""
    respond = _stream if stream else _whole
    return await run_until_disconnect(request, respond(answer))


async def _whole(answer: Awaitable[endpoints.EndpointReply]) -> Response:
    result = await answer
    if isinstance(result, Reply):
        return json_response(result.body())
    async with aclosing(result):
        replies: list[Any] = [reply async for reply in result]
    return json_response(join_replies(replies).body())


async def _stream(answer: Awaitable[endpoints.EndpointReply]) -> Response:
    """The first reply is awaited here, so that a refusal still gets a status of its own."""
    result = await answer
    if isinstance(result, Reply):
        return json_response(result.body())
    first = await anext(result)
    return LinesResponse(_lines(first, result), media_type="application/x-ndjson")


async def _lines(first: Reply, rest: AsyncGenerator[Any]) -> AsyncGenerator[bytes]:
    async with aclosing(rest):
        yield json_line(first.body())
        try:
            async for reply in rest:
                yield json_line(reply.body())
        except ApiError as fault:
            yield json_line({"error": fault.text})


async def _fault(_: Request, error: Any) -> Response:
    return json_response({"error": error.text}, error.status)


async def _http_exception(_: Request, error: Any) -> Response:
    return PlainTextResponse(f"{error.status_code} {_WORDS.get(error.status_code, error.detail)}", error.status_code)


_WORDS: Mapping[int, str] = {404: "page not found", 405: "method not allowed"}
