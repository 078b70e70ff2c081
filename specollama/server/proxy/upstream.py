"""A server behind the proxy: requests are passed on to it, and its answers back, byte for byte."""

from __future__ import annotations

from collections.abc import AsyncGenerator, AsyncIterator, Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import httpx
from starlette.requests import Request
from starlette.responses import Response

from specollama.backends.http import UnusableAnswer, open_client, root_cause, send_whole
from specollama.backends.request_log import LOG
from specollama.config.endpoints import Endpoint
from specollama.errors import ApiError
from specollama.server.http.responses import LinesResponse

_HOP_BY_HOP = frozenset(
    b"connection keep-alive proxy-authenticate proxy-authorization te trailer transfer-encoding upgrade".split()
)
_OUR_OWN = frozenset((b"host", b"origin", b"content-length"))  # of a request: made anew, or checked already


class UpstreamBroken(Exception):
    """An answer that ended in the middle: the client's connection has to end so too."""


@dataclass(slots=True)
class Upstream:
    """One endpoint. `hide_authorization`: the client's own is the proxy's, and goes no further."""

    endpoint: Endpoint
    token: str | None
    http: httpx.AsyncClient
    hide_authorization: bool = False

    @classmethod
    def open(cls, endpoint: Endpoint, environ: Mapping[str, str], *, hide_authorization: bool) -> Upstream:
        client = open_client(
            endpoint.url,
            connect_timeout=endpoint.connect_timeout,
            idle_timeout=endpoint.idle_timeout,
            idle_connections=64,
        )
        return cls(endpoint, endpoint.token(environ), client, hide_authorization)

    @property
    def name(self) -> str:
        """What stands behind the @ of a model's name where several servers have one of that name."""
        return self.endpoint.name or self.endpoint.url.partition("://")[2]

    async def forward(self, request: Request, body: bytes | None = None) -> Response:
        """The server's answer to the same request. `body`: the whole of it, where it was read already."""
        content = body if body is not None else _streamed(request)
        response = await self._sent(request, content)
        if fault := _unpassable(response):
            await response.aclose()
            raise ApiError(502, f"{self.endpoint} {fault}")
        passed = LinesResponse(_raw(response, self.endpoint.url), response.status_code)
        passed.raw_headers = [
            (name.lower(), value) for name, value in response.headers.raw if name.lower() not in _HOP_BY_HOP
        ]
        return passed

    async def json(self, method: str, path: str, body: Any = None, *, limit: float | None = None) -> httpx.Response:
        """A request of the proxy's own, its answer read as a whole. `limit`: seconds, all in all.

        Raises ApiError 502 when the server can't be reached, 504 when it takes too long.
        """
        headers = {"Authorization": f"Bearer {self.token}"} if self.token else None
        request = self.http.build_request(method, self.endpoint.url + path, json=body, headers=headers)
        try:
            response = await send_whole(self.http, request, patience=limit or self.endpoint.idle_timeout)
        except (httpx.HTTPError, TimeoutError) as error:
            raise self._failed(error) from error
        if fault := _unpassable(response):
            raise ApiError(502, f"{self.endpoint} {fault}")
        return response

    async def _sent(self, request: Request, content: bytes | AsyncIterator[bytes] | None) -> httpx.Response:
        target = request.scope["raw_path"].partition(b"?")[0]
        if query := request.scope["query_string"]:
            target += b"?" + query
        base = httpx.URL(self.endpoint.url)
        url = base.copy_with(raw_path=base.raw_path.rstrip(b"/") + target)
        headers = self._headers(request.headers.raw)
        if content is not None and not isinstance(content, bytes) and (length := request.headers.get("content-length")):
            headers.append((b"content-length", length.encode("latin-1")))
        try:
            return await self.http.send(
                httpx.Request(request.method, url, headers=headers, content=content), stream=True
            )
        except httpx.HTTPError as error:
            raise self._failed(error) from error

    def _headers(self, given: Iterable[tuple[bytes, bytes]]) -> list[tuple[bytes, bytes]]:
        hidden = {b"authorization"} if self.token or self.hide_authorization else set()
        headers = [(name, value) for name, value in given if name not in _HOP_BY_HOP | _OUR_OWN | hidden]
        return headers + ([(b"authorization", f"Bearer {self.token}".encode())] if self.token else [])

    def _failed(self, error: httpx.HTTPError | TimeoutError) -> ApiError:
        LOG.warning("%s: %s", self.endpoint.url, type(error).__name__)
        late = isinstance(error, httpx.TimeoutException | TimeoutError)
        if late and not isinstance(error, httpx.ConnectTimeout):
            return ApiError(504, f"{self.endpoint} gave no byte in time and was given up")
        if isinstance(error, UnusableAnswer):
            return ApiError(502, f"{self.endpoint}: {error}")
        advice = "is Ollama running there? (`ollama serve`)"
        return ApiError(502, f"{self.endpoint} can't be reached: {root_cause(error)}; {advice}")


def _unpassable(response: httpx.Response) -> str | None:
    """What is wrong with an answer that a client can't be given."""
    if not 200 <= response.status_code < 600:
        return f"answered with the status {response.status_code}, which isn't one of HTTP's"
    location = response.headers.get("location", "") if response.has_redirect_location else ""
    return f"redirects to {location[:200]}: set the endpoint's url to that" if "://" in location else None


def _streamed(request: Request) -> AsyncIterator[bytes] | None:
    """The body as it comes; None where the request has none."""
    length = request.headers.get("content-length")
    has_one = length not in (None, "0") or "transfer-encoding" in request.headers
    return request.stream() if has_one else None


async def _raw(response: httpx.Response, url: str) -> AsyncGenerator[bytes, None]:
    try:
        async for chunk in response.aiter_raw():
            yield chunk
    except httpx.HTTPError as error:
        raise UpstreamBroken(f"{url}: {error or type(error).__name__}") from error
    finally:
        await response.aclose()
