"""Logs each HTTP request: method, server and path, status, time and bytes. Never a body, a header or a query.

The records go to the standard logger `specollama.http`, at level INFO. Requests that fail are logged there, too.
"""

from __future__ import annotations

import logging
from collections.abc import AsyncIterator
from time import perf_counter
from typing import Any

import httpx

LOG = logging.getLogger("specollama.http")
# Without a handler in the package Python prints its warnings on stderr, whether a log is wanted or not.
logging.getLogger("specollama").addHandler(logging.NullHandler())
_BEGAN = "specollama_began"  # key of a request's `extensions`: when it was sent, in seconds


def hooks() -> dict[str, list[Any]]:
    """Return the event hooks of an httpx.AsyncClient whose requests are logged."""
    return {"request": [_request], "response": [_response]}


async def _request(request: httpx.Request) -> None:
    request.extensions = {**request.extensions, _BEGAN: perf_counter()}
    LOG.debug("%s sent", _name(request))


async def _response(response: httpx.Response) -> None:
    if LOG.isEnabledFor(logging.INFO) and isinstance(response.stream, httpx.AsyncByteStream):
        response.stream = _LoggedBody(response, response.stream)


class _LoggedBody(httpx.AsyncByteStream):
    """The body of a response. It writes the line when the body was read, or when its reader stopped."""

    def __init__(self, response: httpx.Response, stream: httpx.AsyncByteStream) -> None:
        self._response, self._stream = response, stream
        self._headers_at, self._bytes, self._whole = perf_counter(), 0, False

    async def __aiter__(self) -> AsyncIterator[bytes]:
        async for chunk in self._stream:
            self._bytes += len(chunk)
            yield chunk
        self._whole = True

    async def aclose(self) -> None:
        await self._stream.aclose()
        began = self._response.request.extensions[_BEGAN]
        LOG.info(
            "%s: %d, %d bytes%s, headers after %.0f ms, all after %.0f ms",
            _name(self._response.request),
            self._response.status_code,
            self._bytes,
            "" if self._whole else " (not read to the end)",
            1000 * (self._headers_at - began),
            1000 * (perf_counter() - began),
        )


def _name(request: httpx.Request) -> str:
    return f"{request.method} {request.url.copy_with(query=None, fragment=None, userinfo=b'')}"
