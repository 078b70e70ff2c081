"""What a request must satisfy before it is looked at: its host, its origin, its token, its size."""

from __future__ import annotations

import hmac
import ipaddress
import json
from collections.abc import Sequence

from starlette.types import ASGIApp, Message, Receive, Scope, Send

from specollama.server.http.origins import Origins

BODY_LIMIT = 32 * 2**20
"""Bytes."""

_LOCAL_NAMES = ("localhost", "local", "internal")


class Guard:
    """ASGI middleware: 403 for a foreign host name or origin, 401 without the token, 413 for too large a body.

    With a `token` every request has to carry it (`Authorization: Bearer`), but for the paths in `public`. `any_host`:
    any host name goes; without it the server is a loopback one, and a page in a browser must not reach it under a
    name of its own. `limit`: bytes of a body, but for the paths that begin with one of `unlimited`.
    """

    def __init__(
        self,
        app: ASGIApp,
        token: str | None,
        *,
        any_host: bool = False,
        origins: Origins | None = None,
        limit: int = BODY_LIMIT,
        unlimited: Sequence[str] = (),
        public: Sequence[str] = (),
    ) -> None:
        self._app = app
        self._token = token
        self._any_host = any_host or token is not None
        self._origins = origins
        self._limit = limit
        self._unlimited = tuple(unlimited)
        self._public = frozenset(public)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        headers = {name.lower(): value.decode("latin-1") for name, value in scope["headers"]}
        if refusal := self._refusal(scope, headers):
            await _refuse(send, *refusal)
            return
        unlimited = scope["path"].startswith(self._unlimited)
        await self._app(scope, receive if unlimited else _limited(receive, self._limit), send)

    def _refusal(self, scope: Scope, headers: dict[bytes, str]) -> tuple[int, str] | None:
        host, origin = headers.get(b"host", ""), headers.get(b"origin")
        if not self._any_host and not is_local_host(host):
            return 403, "this server only answers to local host names"
        if self._origins is not None and origin is not None and not self._origins.allows(origin, host):
            return 403, f"requests from {origin[:80]} are refused: OLLAMA_ORIGINS names the origins that are let in"
        if self._token is not None and scope["path"] not in self._public and not _preflight(scope, headers):
            given = headers.get(b"authorization", "")
            if not hmac.compare_digest(given.encode(), f"Bearer {self._token}".encode()):
                return 401, "unauthorized"
        length = headers.get(b"content-length", "0")
        if length.isdigit() and int(length) > self._limit and not scope["path"].startswith(self._unlimited):
            return 413, too_large_text(self._limit)
        return None


def _preflight(scope: Scope, headers: dict[bytes, str]) -> bool:
    """A browser's question before the request itself, which can't carry a token, and is answered by this server."""
    return scope["method"] == "OPTIONS" and {b"origin", b"access-control-request-method"} <= headers.keys()


def too_large_text(limit: int) -> str:
    size = f"{limit // 2**20} MiB" if limit >= 2**20 else f"{limit} bytes"
    return f"request body too large: the limit is {size}"


class TooLarge(Exception):
    """A body without a declared length went over the limit."""


def _limited(receive: Receive, limit: int) -> Receive:
    seen = 0

    async def counted() -> Message:
        nonlocal seen
        message = await receive()
        seen += len(message.get("body", b""))
        if seen > limit:
            raise TooLarge(too_large_text(limit))
        return message

    return counted


async def _refuse(send: Send, status: int, text: str) -> None:
    body = json.dumps({"error": text}).encode()
    headers = [(b"content-type", b"application/json; charset=utf-8"), (b"connection", b"close")]
    await send({"type": "http.response.start", "status": status, "headers": headers})
    await send({"type": "http.response.body", "body": body})


def is_local_host(host: str) -> bool:
    """Whether a Host header names this machine or one of its private addresses."""
    name = host.lower()
    name = name[1:].partition("]")[0] if name.startswith("[") else name.partition(":")[0]
    try:
        address = ipaddress.ip_address(name)
    except ValueError:
        return not name or name.split(".")[-1] in _LOCAL_NAMES
    return address.is_loopback or address.is_private or address.is_unspecified
