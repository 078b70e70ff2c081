"""A bound on the requests that run at once, and on those that wait for it."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from starlette.types import ASGIApp, Receive, Scope, Send

from specollama.proxy.errors import refusal
from specollama.serving.faults import Fault

SERVER_BUSY = "server busy, please try again.  maximum pending requests exceeded"
"""Ollama's words, the two spaces included."""

_BOUND = ("/api/generate", "/api/chat", "/api/embed", "/v1/")


class Admission:
    """ASGI middleware. First come, first served. The limits are asked anew each time: a reload may change them."""

    def __init__(self, app: ASGIApp, *, limits: Callable[[], tuple[int, int]]) -> None:
        self._app = app
        self._limits = limits
        self._running = 0
        self._waiting: list[asyncio.Future[None]] = []

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http" or not scope["path"].startswith(_BOUND):
            await self._app(scope, receive, send)
            return
        most, queue = self._limits()
        if self._running >= most and len(self._waiting) >= queue:
            await refusal(scope["path"], Fault(503, SERVER_BUSY))(scope, receive, send)
            return
        await self._turn(most)
        try:
            await self._app(scope, receive, send)
        finally:
            self._next()

    async def _turn(self, most: int) -> None:
        if self._running < most:
            self._running += 1
            return
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
