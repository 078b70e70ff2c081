"""Whether the process lives, and whether it is of use: servers that answer, and no request that is stuck."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from time import monotonic
from typing import Any

import httpx
from starlette.requests import Request
from starlette.responses import Response

from specollama._version import __version__
from specollama.backends.http import read_json
from specollama.errors import ApiError
from specollama.server.http.responses import json_response
from specollama.server.proxy.config_generation import generation_of
from specollama.server.proxy.metrics import CONTENT_TYPE, Metrics
from specollama.server.proxy.request_record import RequestRecord
from specollama.server.proxy.upstream import Upstream

PATHS = ("/healthz", "/readyz", "/metrics")
_PATIENCE = 2.0  # seconds that a server gets to answer


class Health:
    """The routes. `records`: of the requests under way."""

    def __init__(self, metrics: Metrics, records: Mapping[int, RequestRecord]) -> None:
        self._metrics = metrics
        self._records = records

    async def healthz(self, _: Request) -> Response:
        return json_response({"status": "ok", "version": __version__})

    async def readyz(self, request: Request) -> Response:
        """503 when a server doesn't answer, or a request has sent nothing for longer than `serve.stuck_after`."""
        generation = generation_of(request)
        upstreams = list(generation.upstreams.values())
        found = await asyncio.gather(*(_look(upstream) for upstream in upstreams))
        limit = monotonic() - generation.serve.stuck_after
        stuck = [record.line() for record in self._records.values() if record.moved < limit]
        ready = not stuck and all("error" not in each for each in found)
        body = {"status": "ready" if ready else "not ready", "endpoints": found, "stuck": stuck}
        return json_response({**body, "running": len(self._records)}, 200 if ready else 503)

    async def metrics(self, _: Request) -> Response:
        return Response(self._metrics.exposition(), media_type=CONTENT_TYPE)


async def _look(upstream: Upstream) -> dict[str, Any]:
    place = {"endpoint": upstream.name, "url": upstream.endpoint.url}
    try:
        response = await upstream.json("GET", "/api/version", limit=_PATIENCE)
        return {**place, "version": str(read_json(response.raise_for_status().content)["version"])[:40]}
    except ApiError as fault:
        return {**place, "error": fault.text}
    except (httpx.HTTPError, ValueError, KeyError, TypeError) as error:
        return {**place, "error": f"/api/version isn't answered as Ollama does: {type(error).__name__}"}
