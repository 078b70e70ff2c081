"""HTTP/1.1 for both servers: uvicorn over h11, its request headers bounded in size and in time.

h11, not httptools: that one takes headers without end, drops the body of a request that offers an upgrade (every
Java client does, for h2c), and frames answers to HTTP/1.0 in chunks.
"""

from __future__ import annotations

import asyncio
from typing import Any

import h11
import uvicorn
from uvicorn.protocols.http.h11_impl import H11Protocol

from specollama.config.limits import REQUESTS, RequestLimits


def uvicorn_config(app: Any, *, limits: RequestLimits = REQUESTS, **settings: Any) -> uvicorn.Config:
    """The configuration of a server of ours. `settings`: uvicorn's own."""
    return uvicorn.Config(
        app,
        http=_bounded_protocol(limits),
        h11_max_incomplete_event_size=limits.headers,
        ws="none",
        access_log=False,
        **settings,
    )


def _bounded_protocol(limits: RequestLimits) -> type[asyncio.Protocol]:
    """A class for these limits, because uvicorn makes one instance for each connection."""

    class BoundedProtocol(H11Protocol):
        _deadline: asyncio.TimerHandle | None = None

        def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
            super().connection_made(transport)
            self._expect_headers()

        def data_received(self, data: bytes) -> None:
            if self._deadline is None and self.conn.their_state is h11.IDLE:
                self._expect_headers()
            super().data_received(data)
            if self.conn.their_state is not h11.IDLE:
                self._stop_expecting()

        def on_response_complete(self) -> None:
            super().on_response_complete()
            if self.conn.their_state is h11.IDLE and self.conn.trailing_data[0] and self._deadline is None:
                self._expect_headers()  # the beginning of the next request came with the last one

        def connection_lost(self, exc: Exception | None) -> None:
            self._stop_expecting()
            super().connection_lost(exc)

        def _unsupported_upgrade_warning(self) -> None:
            """Nothing: a client that offers an upgrade is answered without one, as the standard has it."""

        def _expect_headers(self) -> None:
            self._deadline = self.loop.call_later(limits.headers_time, self.transport.close)

        def _stop_expecting(self) -> None:
            if self._deadline is not None:
                self._deadline.cancel()
                self._deadline = None

    return BoundedProtocol
