"""Around every request: its id, its line in the log, its part in the metrics."""

from __future__ import annotations

import json
import sys
import traceback
from collections.abc import Collection
from datetime import UTC, datetime
from time import monotonic
from typing import Any, TextIO

from starlette.requests import ClientDisconnect
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from specollama.errors import ApiError, one_line
from specollama.server.http.responses import CLIENT_CLOSED_REQUEST
from specollama.server.proxy.errors import error_response
from specollama.server.proxy.metrics import Metrics
from specollama.server.proxy.request_record import KEY, RequestRecord
from specollama.server.proxy.upstream import UpstreamBroken


class JsonLog:
    """One JSON object a line. What can't be written, on a full disk say, is lost and counted; the reply isn't.

    `stream`: where they go; None: stderr.
    """

    def __init__(self, metrics: Metrics, stream: TextIO | None = None) -> None:
        self._metrics = metrics
        self.stream = stream

    def write(self, fields: dict[str, Any]) -> None:
        when = datetime.now(UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")
        line = json.dumps({"time": when, **fields}, ensure_ascii=True, default=str)
        try:
            print(line, file=self.stream or sys.stderr, flush=True)
        except (OSError, ValueError):
            self._metrics.log_line_lost()


class AccessLog:
    """ASGI middleware, the outermost. `records`: where those of the requests under way are kept.

    `quiet`: paths that are asked every few seconds by machines, and of which nothing is told.
    """

    def __init__(
        self, app: ASGIApp, *, metrics: Metrics, log: JsonLog, records: dict[int, RequestRecord], quiet: Collection[str]
    ) -> None:
        self._app = app
        self._quiet = quiet
        self._metrics = metrics
        self._log = log
        self._records = records

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http" or scope["path"] in self._quiet:
            await self._app(scope, receive, send)
            return
        record = scope[KEY] = RequestRecord.of(scope)
        self._records[id(record)] = record
        self._metrics.request_started()
        watched = _watched(send, record)
        try:
            await self._app(scope, receive, watched)
            if not record.status:  # it left while it was sending
                record.status = CLIENT_CLOSED_REQUEST
        except ClientDisconnect:
            record.status = CLIENT_CLOSED_REQUEST
        except UpstreamBroken as error:
            record.error = one_line(str(error))  # to return with the answer unfinished drops the connection
        except Exception as error:  # noqa: BLE001 - a fault of ours: told in the log, and the server goes on
            record.error = f"{type(error).__name__}: {one_line(str(error))}"
            record.trace = traceback.format_exc()
            if not record.status:
                told = ApiError(500, f"a fault of specollama's own: its log says more, request {record.id}")
                await error_response(record.path, told)(scope, receive, watched)
        finally:
            record.ended = monotonic()
            del self._records[id(record)]
            self._metrics.request_ended(record)
            self._log.write(record.line())


def _watched(send: Send, record: RequestRecord) -> Send:
    async def watched(message: Message) -> None:
        if message["type"] == "http.response.start":
            record.status = message["status"]
            message["headers"] = [*message.get("headers", []), (b"x-request-id", record.id.encode())]
        else:
            body = message.get("body", b"")
            if body and record.first_byte is None:
                record.first_byte = monotonic() - record.began
            record.sent += len(body)
            record.whole = not message.get("more_body", False)
        await send(message)
        record.moved = monotonic()

    return watched
