"""A bound on the requests that run at once, and on those that wait for it."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from starlette.requests import ClientDisconnect
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from specollama.errors import ApiError
from specollama.server.proxy.errors import error_response
from specollama.server.proxy.request_limits import BOUND

SERVER_BUSY = "server busy, please try again.  maximum pending requests exceeded"
"""Ollama's words, the two spaces included."""


class Admission:
    """ASGI middleware. First come, first served. The limits are asked anew each time: a reload may change them."""

    def __init__(self, app: ASGIApp, *, limits: Callable[[], tuple[int, int]]) -> None:
        self._app = app
        self._limits = limits
        self._running = 0
        self._waiting: list[asyncio.Future[None]] = []

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http" or not scope["path"].startswith(BOUND):
            await self._app(scope, receive, send)
            return
        most, queue = self._limits()
        if self._running >= most and len(self._waiting) >= queue:
            await error_response(scope["path"], ApiError(503, SERVER_BUSY))(scope, receive, send)
            return
        sent = BufferedReceive(receive)
        await self._turn_of(most, sent)
        try:
            await self._app(scope, sent.receive, send)
        finally:
            self._next()

    async def _turn_of(self, most: int, sent: BufferedReceive) -> None:
        """Wait for a place. Raises ClientDisconnect when the client doesn't."""
        if self._running < most:
            self._running += 1
            return
        turn, leaving = asyncio.ensure_future(self._turn()), asyncio.ensure_future(sent.until_gone())
        try:
            await asyncio.wait({turn, leaving}, return_when=asyncio.FIRST_COMPLETED)
            if not turn.done():
                raise ClientDisconnect
        except asyncio.CancelledError:
            if turn.done() and not turn.cancelled():
                self._next()  # it was given the place, and leaves it
            raise
        finally:
            for each in (turn, leaving):
                each.cancel()
            await asyncio.gather(turn, leaving, return_exceptions=True)

    async def _turn(self) -> None:
        turn = asyncio.get_running_loop().create_future()
        self._waiting.append(turn)
        try:
            await turn
        except asyncio.CancelledError:
            if turn.done() and not turn.cancelled():
                self._next()  # it was given the place, and leaves it
            else:
                self._waiting.remove(turn)
            raise

    def _next(self) -> None:
        """Give the place to the one that has waited longest."""
        if self._waiting:
            self._waiting.pop(0).set_result(None)
        else:
            self._running -= 1


class BufferedReceive:
    """What a client sends while it waits, kept for when its turn has come."""

    def __init__(self, receive: Receive) -> None:
        self._receive = receive
        self._kept: list[Message] = []

    async def until_gone(self) -> None:
        while not self._kept or self._kept[-1]["type"] != "http.disconnect":
            self._kept.append(await self._receive())

    async def receive(self) -> Message:
        return self._kept.pop(0) if self._kept else await self._receive()
