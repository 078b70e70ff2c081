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

from specollama.errors import SpecollamaError
from specollama.proxy import native, openai
from specollama.proxy.access import Access, Log
from specollama.proxy.admission import Admission
from specollama.proxy.errors import refusal
from specollama.proxy.generation import Generation, InUse
from specollama.proxy.health import PATHS, Health
from specollama.proxy.metrics import Metrics
from specollama.proxy.record import Record
from specollama.serving.faults import Fault
from specollama.serving.guard import Guard, TooLarge
from specollama.serving.origins import Origins

_ANY = ["GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS"]


def make_app(
    current: Callable[[], Generation],
    *,
    lifespan: Callable[[], AbstractAsyncContextManager[None]],
    metrics: Metrics,
    log: Log,
    token: str | None = None,
    any_host: bool = False,
    origins: Origins,
) -> Starlette:
    """The application. `current`: the configuration as it was read last; `lifespan` opens and closes it.

    `token`: what requests must carry. `any_host`: the Host header isn't looked at.
    """
    records: dict[int, Record] = {}
    serve = current().serve

    @asynccontextmanager
    async def living(_: Starlette) -> AsyncIterator[None]:
        async with lifespan():
            yield

    return Starlette(
        routes=_routes(Health(metrics, records)),
        middleware=[
            Middleware(Access, metrics=metrics, log=log, records=records, quiet=PATHS),
            Middleware(
                Guard,
                token=token,
                any_host=any_host,
                origins=origins,
                limit=serve.max_body,
                unlimited=(native.UPLOADS,),
                public=("/healthz",),
            ),
            Middleware(
                CORSMiddleware, allow_origin_regex=".*", allow_methods=_ANY, allow_headers=["*"], expose_headers=["*"]
            ),
            Middleware(InUse, current=current),
            Middleware(Admission, limits=lambda: (current().serve.max_requests, current().serve.max_queue)),
        ],
        exception_handlers={Fault: _fault, SpecollamaError: _fault, TooLarge: _too_large},
        lifespan=living,
    )


def _routes(health: Health) -> list[Route]:
    own = dict(zip(PATHS, (health.healthz, health.readyz, health.metrics), strict=True))
    return [
        Route("/", native.root),
        *(Route(path, answer) for path, answer in own.items()),
        Route("/api/generate", native.generate, methods=["POST"]),
        Route("/api/chat", native.chat, methods=["POST"]),
        Route("/api/show", native.show, methods=["POST"]),
        Route("/api/tags", native.tags),
        Route("/api/ps", native.ps),
        Route("/v1/chat/completions", openai.chat, methods=["POST"]),
        Route("/v1/completions", openai.completions, methods=["POST"]),
        Route("/v1/models", openai.models),
        Route("/v1/models/{model:path}", openai.model),
        Route("/{path:path}", native.other, methods=_ANY),
    ]


async def _fault(request: Request, error: Any) -> Response:
    return refusal(request.url.path, error)


async def _too_large(request: Request, error: Exception) -> Response:
    return refusal(request.url.path, Fault(413, str(error)))
