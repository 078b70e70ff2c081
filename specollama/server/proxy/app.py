"""The routes and what stands around them, as an ASGI application."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from typing import Any

from starlette.applications import Starlette
from starlette.middleware import Middleware
from starlette.middleware.cors import CORSMiddleware
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from specollama.errors import ApiError, SpecollamaError
from specollama.server.http.guard import Guard, TooLarge
from specollama.server.http.origins import Origins
from specollama.server.proxy import ollama_api, openai_api
from specollama.server.proxy.access_log import AccessLog, JsonLog
from specollama.server.proxy.admission import Admission
from specollama.server.proxy.config_generation import ConfigGeneration, PinnedConfig
from specollama.server.proxy.errors import error_response
from specollama.server.proxy.health import PATHS, Health
from specollama.server.proxy.metrics import Metrics
from specollama.server.proxy.request_record import RequestRecord

_ANY = ["GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS"]


def make_app(
    current: Callable[[], ConfigGeneration],
    *,
    lifespan: Callable[[], AbstractAsyncContextManager[None]],
    metrics: Metrics,
    log: JsonLog,
    token: str | None = None,
    any_host: bool = False,
    origins: Origins,
) -> Starlette:
    """The application. `current`: the configuration as it was read last; `lifespan` opens and closes it.

    `token`: what requests must carry. `any_host`: the Host header isn't looked at.
    """
    records: dict[int, RequestRecord] = {}
    serve = current().serve

    @asynccontextmanager
    async def living(_: Starlette) -> AsyncIterator[None]:
        async with lifespan():
            yield

    return Starlette(
        routes=_routes(Health(metrics, records)),
        middleware=[
            Middleware(AccessLog, metrics=metrics, log=log, records=records, quiet=PATHS),
            Middleware(
                Guard,
                token=token,
                any_host=any_host,
                origins=origins,
                limit=serve.max_body,
                unlimited=(ollama_api.UPLOADS,),
                public=("/healthz",),
            ),
            Middleware(
                CORSMiddleware, allow_origin_regex=".*", allow_methods=_ANY, allow_headers=["*"], expose_headers=["*"]
            ),
            Middleware(PinnedConfig, current=current),
            Middleware(Admission, limits=lambda: (current().serve.max_requests, current().serve.max_queue)),
        ],
        exception_handlers={ApiError: _fault, SpecollamaError: _fault, TooLarge: _too_large},
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
        Route("/{path:path}", ollama_api.other, methods=_ANY),
    ]


async def _fault(request: Request, error: Any) -> Response:
    return error_response(request.url.path, error)


async def _too_large(request: Request, error: Exception) -> Response:
    return error_response(request.url.path, ApiError(413, str(error)))
