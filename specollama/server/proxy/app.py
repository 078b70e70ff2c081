"""The routes and what stands around them, as an ASGI application."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from typing import Any

from starlette.applications import Starlette
from starlette.middleware import Middleware
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from specollama.config.limits import RequestLimits
from specollama.errors import ApiError, SpecollamaError
from specollama.server.http.bodies import BodyError, BodyReader
from specollama.server.http.guard import CORS, METHODS, Guard
from specollama.server.http.origins import Origins
from specollama.server.http.paths import CanonicalPath
from specollama.server.http.responses import refusal
from specollama.server.proxy import ollama_api, openai_api
from specollama.server.proxy.access_log import AccessLog, JsonLog
from specollama.server.proxy.admission import Admission
from specollama.server.proxy.config_generation import ConfigGeneration, PinnedConfig
from specollama.server.proxy.errors import error_response
from specollama.server.proxy.health import PATHS, Health
from specollama.server.proxy.metrics import Metrics
from specollama.server.proxy.request_record import RequestRecord


def make_app(
    current: Callable[[], ConfigGeneration],
    *,
    lifespan: Callable[[], AbstractAsyncContextManager[None]],
    metrics: Metrics,
    log: JsonLog,
    token: str | None = None,
    any_host: bool = False,
    origins: Origins,
    limits: RequestLimits,
) -> Starlette:
    """The application. `current`: the configuration as it was read last; `lifespan` opens and closes it.

    `token`: what requests must carry. `any_host`: the Host header isn't looked at.
    """
    records: dict[int, RequestRecord] = {}

    @asynccontextmanager
    async def living(_: Starlette) -> AsyncIterator[None]:
        async with lifespan():
            yield

    return Starlette(
        routes=_routes(Health(metrics, records)),
        middleware=[
            Middleware(CanonicalPath),
            Middleware(AccessLog, metrics=metrics, log=log, records=records, quiet=PATHS),
            Middleware(Guard, token=token, any_host=any_host, origins=origins, public=("/healthz",)),
            CORS,
            Middleware(PinnedConfig, current=current),
            Middleware(BodyReader, limits=limits, streamed=(ollama_api.UPLOADS,)),
            Middleware(Admission, limits=lambda: (current().serve.max_requests, current().serve.max_queue)),
        ],
        exception_handlers={ApiError: _fault, SpecollamaError: _fault, BodyError: _too_slow},
        lifespan=living,
    )


def _routes(health: Health) -> list[Route]:
    own = dict(zip(PATHS, (health.healthz, health.readyz, health.metrics), strict=True))
    return [
        Route("/", ollama_api.root),
        *(Route(path, answer) for path, answer in own.items()),
        Route("/api/generate", ollama_api.generate, methods=["POST"]),
        Route("/api/chat", ollama_api.chat, methods=["POST"]),
        Route("/api/show", ollama_api.show, methods=["POST"]),
        Route("/api/tags", ollama_api.tags),
        Route("/api/ps", ollama_api.ps),
        Route("/v1/chat/completions", openai_api.chat, methods=["POST"]),
        Route("/v1/completions", openai_api.completions, methods=["POST"]),
        Route("/v1/models", openai_api.models),
        Route("/v1/models/{model:path}", openai_api.model),
        Route("/{path:path}", ollama_api.other, methods=METHODS),
    ]


async def _fault(request: Request, error: Any) -> Response:
    return error_response(request.url.path, error)


async def _too_slow(request: Request, error: Any) -> Response:
    """Of a body that is passed on as it comes."""
    return refusal(request.url.path, error.status, error.text)
