"""What a request must satisfy before it is looked at: its host, its origin, its token."""

from __future__ import annotations

import hmac
import ipaddress
from collections.abc import Sequence

from starlette.middleware import Middleware
from starlette.middleware.cors import CORSMiddleware
from starlette.types import ASGIApp, Receive, Scope, Send

from specollama.server.http.origins import Origins
from specollama.server.http.responses import refusal

_LOCAL_NAMES = ("localhost", "local", "internal")
METHODS = ("GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS")

CORS = Middleware(
    CORSMiddleware, allow_origin_regex=".*", allow_methods=METHODS, allow_headers=["*"], expose_headers=["*"]
)
"""Answers the browsers of the pages that the guard before it has let in."""

_ONCE = (b"host", b"origin", b"authorization")


class Guard:
    """ASGI middleware: 403 for a foreign host name or origin, 401 without the token, 400 where one of them is doubled.

    With a `token` every request has to carry it (`Authorization: Bearer`), but for the paths in `public`. `any_host`:
    any host name goes; without it the server is a loopback one, and a page in a browser must not reach it under a
    name of its own.
    """

    def __init__(
        self,
        app: ASGIApp,
        token: str | None,
        *,
        any_host: bool = False,
        origins: Origins,
        public: Sequence[str] = (),
    ) -> None:
        self._app = app
        self._token = token
        self._any_host = any_host or token is not None
        self._origins = origins
        self._public = frozenset(public)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        if refused := self._refusal(scope):
            await refusal(scope["path"], *refused)(scope, receive, send)
            return
        await self._app(scope, receive, send)

    def _refusal(self, scope: Scope) -> tuple[int, str] | None:
        """Status and text, or None."""
        names = [name.lower() for name, _ in scope["headers"]]
        for name in _ONCE:
            if names.count(name) > 1:  # what stands before or behind this server may look at the other one
                return 400, f"more than one {name.decode().title()} header"
        headers = {name.lower(): value.decode("latin-1") for name, value in scope["headers"]}
        host, origin = headers.get(b"host", ""), headers.get(b"origin")
        if not self._any_host and not is_local_host(host):
            return 403, "this server only answers to local host names"
        if origin is not None and not self._origins.allows(origin, host):
            return 403, f"requests from {origin[:80]} are refused: OLLAMA_ORIGINS names the origins that are let in"
        if self._token is not None and scope["path"] not in self._public and not _preflight(scope, headers):
            given = headers.get(b"authorization", "")
            if not hmac.compare_digest(given.encode(), f"Bearer {self._token}".encode()):
                return 401, "unauthorized"
        return None


def _preflight(scope: Scope, headers: dict[bytes, str]) -> bool:
    """A browser's question before the request itself, which can't carry a token, and is answered by this server."""
    return scope["method"] == "OPTIONS" and {b"origin", b"access-control-request-method"} <= headers.keys()


def is_local_host(host: str) -> bool:
    """Whether a Host header names this machine or one of its private addresses."""
    name = host.lower()
    name = name[1:].partition("]")[0] if name.startswith("[") else name.partition(":")[0]
    try:
        address = ipaddress.ip_address(name)
    except ValueError:
        return not name or name.split(".")[-1] in _LOCAL_NAMES
    return address.is_loopback or address.is_private or address.is_unspecified
