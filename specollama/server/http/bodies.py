"""Reads a request's body before anything is done for the request: bounded in size, in time and in all."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from time import monotonic

from starlette.types import ASGIApp, Message, Receive, Scope, Send

from specollama.config.limits import MIB, RequestLimits
from specollama.server.http.responses import refusal

TOO_SLOW = "the request's body came too slowly and was given up"
HELD = "server busy: the bodies of other requests fill its memory, please try again"


class BodyError(Exception):
    """A body that is refused. `status`: of the answer."""

    def __init__(self, status: int, text: str) -> None:
        super().__init__(text)
        self.status, self.text = status, text


class BodyReader:
    """ASGI middleware: the application gets the whole body in one message, or isn't called.

    Answers 413 for too large a body, 408 for one that comes too slowly, and 503 when all bodies together are too much.
    `streamed`: the beginnings of paths whose bodies have no bound, and go to the application as they come.
    """

    def __init__(self, app: ASGIApp, *, limits: RequestLimits, streamed: Sequence[str] = ()) -> None:
        self._app = app
        self._limits = limits
        self._streamed = tuple(streamed)
        self._held = 0  # bytes of all bodies

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        patient = PatientReceive(receive, self._limits)
        if scope["path"].startswith(self._streamed):
            await self._app(scope, patient.receive, send)
            return
        body = bytearray()
        try:
            if await self._read(scope, patient, body):
                await self._app(scope, _replayed(bytes(body), receive), send)
        except BodyError as error:
            await refusal(scope["path"], error.status, error.text)(scope, receive, send)
        finally:
            self._held -= len(body)

    async def _read(self, scope: Scope, patient: PatientReceive, body: bytearray) -> bool:
        """Fill `body`; False when the client left. Raises BodyError."""
        self._check(_declared_length(scope))
        more = True
        while more:
            message = await patient.receive()
            if message["type"] == "http.disconnect":
                return False
            piece = message.get("body", b"")
            self._check(len(body) + len(piece))
            if self._held + len(piece) > self._limits.bodies:
                raise BodyError(503, HELD)
            body += piece
            self._held += len(piece)
            more = message.get("more_body", False)
        return True

    def _check(self, length: int) -> None:
        if length > self._limits.body:
            raise BodyError(413, too_large_text(self._limits.body))


class PatientReceive:
    """Takes a body from a client that keeps to the minimum rate. Only the time that it keeps us waiting counts.

    A body that is passed on while it comes may wait for the server behind, which isn't the client's fault.
    """

    def __init__(self, receive: Receive, limits: RequestLimits) -> None:
        self._receive = receive
        self._limits = limits
        self._waited = 0.0  # seconds
        self._came = 0  # bytes
        self._complete = False

    async def receive(self) -> Message:
        """Raises BodyError when the body comes too slowly."""
        if self._complete:
            return await self._receive()
        began = monotonic()
        message = await self._in_time()
        self._waited += monotonic() - began
        self._came += len(message.get("body", b""))
        self._complete = not message.get("more_body", False)
        return message

    async def _in_time(self) -> Message:
        left = self._limits.body_grace + self._came / self._limits.body_rate - self._waited
        try:
            async with asyncio.timeout(left):
                return await self._receive()
        except TimeoutError:
            raise BodyError(408, TOO_SLOW) from None


def too_large_text(limit: int) -> str:
    size = f"{limit // MIB} MiB" if limit >= MIB else f"{limit} bytes"
    return f"request body too large: the limit is {size}"


def _declared_length(scope: Scope) -> int:
    for name, value in scope["headers"]:
        if name == b"content-length" and value.isdigit():
            return int(value[:20])
    return 0


def _replayed(body: bytes, receive: Receive) -> Receive:
    """`receive` with the body before it, once."""
    first: list[Message] = [{"type": "http.request", "body": body, "more_body": False}]

    async def replayed() -> Message:
        return first.pop() if first else await receive()

    return replayed
