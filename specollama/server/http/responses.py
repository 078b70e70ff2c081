"""Answers over ASGI: JSON, lines of JSON, and an end to all work when the client goes away."""

from __future__ import annotations

import asyncio
import json
import math
from collections.abc import Coroutine
from contextlib import aclosing
from typing import Any

from starlette.requests import Request
from starlette.responses import Response, StreamingResponse
from starlette.types import Send

CLIENT_CLOSED_REQUEST = 499
"""The client closed the connection: nobody reads this status."""


def json_bytes(body: Any) -> bytes:
    """Strict JSON: a number that it can't write (NaN, infinity) is null."""
    try:
        text = json.dumps(body, ensure_ascii=False, allow_nan=False, separators=(",", ":"))
    except ValueError:
        text = json.dumps(_finite(body), ensure_ascii=False, separators=(",", ":"))
    return text.encode("utf-8", "replace")


def _finite(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _finite(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_finite(item) for item in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value


_OPENAI_KINDS = {400: "invalid_request_error", 404: "not_found_error"}


def error_body(path: str, status: int, text: str) -> dict[str, Any]:
    """An error in Ollama's shape, or in OpenAI's where the path is one of OpenAI's."""
    if not path.startswith("/v1/"):
        return {"error": text}
    kind = _OPENAI_KINDS.get(status, "api_error")
    return {"error": {"message": text, "type": kind, "param": None, "code": None}}


def refusal(path: str, status: int, text: str) -> Response:
    """An error for a request that isn't read to its end: the connection is of no more use."""
    return json_response(error_body(path, status, text), status, {"connection": "close"})


def json_line(body: dict[str, Any]) -> bytes:
    return json_bytes(body) + b"\n"


def json_response(body: Any, status: int = 200, headers: dict[str, str] | None = None) -> Response:
    return Response(json_bytes(body), status, headers, media_type="application/json; charset=utf-8")


class LinesResponse(StreamingResponse):
    """Closes its iterator when the client leaves; left alone, it would wait for the garbage collector."""

    async def stream_response(self, send: Send) -> None:
        lines: Any = self.body_iterator
        async with aclosing(lines):
            await super().stream_response(send)


async def run_until_disconnect(request: Request, work: Coroutine[Any, Any, Response]) -> Response:
    """The response that `work` makes, which is ended when the client leaves before."""
    task = asyncio.ensure_future(work)
    watch = asyncio.ensure_future(_disconnected(request))
    try:
        await asyncio.wait({task, watch}, return_when=asyncio.FIRST_COMPLETED)
        return task.result() if task.done() else Response(status_code=CLIENT_CLOSED_REQUEST)
    finally:
        for each in (task, watch):
            each.cancel()
        await asyncio.gather(task, watch, return_exceptions=True)


async def _disconnected(request: Request) -> None:
    while (await request.receive())["type"] != "http.disconnect":
        pass
