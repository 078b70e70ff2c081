"""What a request must satisfy before it is looked at: its host, its token, its size."""

from __future__ import annotations

import hmac
import ipaddress
import json

from starlette.types import ASGIApp, Message, Receive, Scope, Send

BODY_LIMIT = 32 * 2**20
"""Bytes."""

_LOCAL_NAMES = ("localhost", "local", "internal")


class Guard:
    """ASGI middleware: 403 for a foreign host name, 401 without the token, 413 for a body over `BODY_LIMIT`.

    With a `token` every request has to carry it (`Authorization: Bearer`) and any host name goes; without one
    the server is a loopback one, and a page in a browser must not reach it under a name of its own.
    """

    def __init__(self, app: ASGIApp, token: str | None) -> None:
        self._app = app
        self._token = token

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        headers = {name.lower(): value.decode("latin-1") for name, value in scope["headers"]}
        if refusal := self._refusal(headers):
            await _refuse(send, *refusal)
            return
        await self._app(scope, _limited(receive), send)

    def _refusal(self, headers: dict[bytes, str]) -> tuple[int, str] | None:
        if self._token is None and not local(headers.get(b"host", "")):
            return 403, "this server only answers to local host names"
        if self._token is not None:
            given = headers.get(b"authorization", "")
            if not hmac.compare_digest(given.encode(), f"Bearer {self._token}".encode()):
                return 401, "unauthorized"
        length = headers.get(b"content-length", "0")
        if length.isdigit() and int(length) > BODY_LIMIT:
            return 413, _TOO_LARGE
        return None


_TOO_LARGE = f"request body too large: the limit is {BODY_LIMIT // 2**20} MiB"


class TooLarge(Exception):
    """A body without a declared length went over the limit."""


def _limited(receive: Receive) -> Receive:
    seen = 0

    async def counted() -> Message:
        nonlocal seen
        message = await receive()
        seen += len(message.get("body", b""))
        if seen > BODY_LIMIT:
            raise TooLarge(_TOO_LARGE)
        return message

    return counted


async def _refuse(send: Send, status: int, text: str) -> None:
    body = json.dumps({"error": text}).encode()
    headers = [(b"content-type", b"application/json; charset=utf-8"), (b"connection", b"close")]
    await send({"type": "http.response.start", "status": status, "headers": headers})
    await send({"type": "http.response.body", "body": body})


def local(host: str) -> bool:
    """Whether a Host header names this machine or one of its private addresses."""
    name = host.lower()
    name = name[1:].partition("]")[0] if name.startswith("[") else name.partition(":")[0]
    try:
        address = ipaddress.ip_address(name)
    except ValueError:
        return not name or name.split(".")[-1] in _LOCAL_NAMES
    return address.is_loopback or address.is_private or address.is_unspecified
