"""What is noted of a request while it runs: for the log, the metrics and the question whether any is stuck."""

from __future__ import annotations

import re
import secrets
from collections.abc import Mapping
from dataclasses import dataclass, field
from time import monotonic
from typing import Any

from starlette.requests import HTTPConnection

from specollama.server.http.responses import CLIENT_CLOSED_REQUEST
from specollama.spec_decode.metrics import Stats

KEY = "specollama.record"
"""Where a request's record is in its ASGI scope."""

_ID = re.compile(r"[A-Za-z0-9._:-]{1,128}")


@dataclass(slots=True)
class RequestRecord:
    """Times in seconds of the monotonic clock, durations in seconds. `pair` None: passed on."""

    id: str
    method: str
    path: str
    client: str
    began: float = field(default_factory=monotonic)
    moved: float = field(default_factory=monotonic)  # when something was last sent
    ended: float | None = None
    first_byte: float | None = None  # duration
    status: int = 0
    sent: int = 0  # bytes
    model: str | None = None
    pair: str | None = None
    stats: Stats | None = None
    whole: bool = False  # the answer was sent to its end
    error: str = ""
    trace: str = ""  # of a fault of our own
    prompt: Any = None  # only where the configuration asks for it

    @classmethod
    def of(cls, scope: Mapping[str, Any]) -> RequestRecord:
        """A new one. A client's own x-request-id is kept, if it can stand in a log."""
        headers = dict(scope["headers"])
        given = headers.get(b"x-request-id", b"").decode("latin-1")
        client = scope.get("client")
        return cls(
            id=given if _ID.fullmatch(given) else secrets.token_hex(8),
            method=scope["method"],
            path=scope["path"],
            client=client[0] if client else "",
        )

    @property
    def route(self) -> str:
        return "passed" if self.pair is None else str(self.stats.route) if self.stats else "none"

    @property
    def aborted(self) -> bool:
        """Whether the client left before the end."""
        return self.status == CLIENT_CLOSED_REQUEST or not (self.whole or self.error)

    @property
    def seconds(self) -> float:
        return (self.ended or monotonic()) - self.began

    def line(self) -> dict[str, Any]:
        """For the log: what isn't known or is nothing is left out. No text of the client's but model and path."""
        fields: dict[str, Any] = {
            "id": self.id,
            "client": self.client,
            "method": self.method,
            "path": self.path,
            "status": self.status,
            "ms": round(self.seconds * 1000, 1),
            "first_ms": None if self.first_byte is None else round(self.first_byte * 1000, 1),
            "bytes": self.sent,
            "model": self.model,
            "pair": self.pair,
            "route": self.route,
            "aborted": self.aborted or None,
            "error": self.error or None,
            "trace": self.trace or None,
            "prompt": self.prompt,
        }
        if self.stats is not None:
            fields |= {
                "reason": self.stats.reason or None,
                "notices": self.stats.notices or None,
                "tokens": self.stats.eval_count,
                "drafted": self.stats.drafted,
                "accepted": self.stats.accepted,
            }
        return {name: value for name, value in fields.items() if value is not None}


def record_of(request: HTTPConnection) -> RequestRecord:
    record: RequestRecord = request.scope[KEY]
    return record
