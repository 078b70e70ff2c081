"""HTTP client of an engine's server: JSON bodies in, validated answers out. Every failure is one of errors.py."""

from __future__ import annotations

from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import AbstractContextManager
from dataclasses import dataclass
from types import TracebackType
from typing import Any, Self, TypeVar

import httpx
from pydantic import BaseModel, TypeAdapter, ValidationError

from specollama.backends.http import (
    CONNECT_TIMEOUT,
    IDLE_TIMEOUT,
    map_httpx_errors,
    open_client,
    raw_pieces,
    read_json,
    read_whole,
    send_whole,
    split_lines,
)
from specollama.config.limits import ANSWERS
from specollama.errors import BrokenReply, Refused

_Answer = TypeVar("_Answer", bound=BaseModel)


@dataclass(frozen=True, slots=True)
class EngineKind:
    """The engine's name and how a user starts it, for error messages."""

    name: str
    start: str = ""

    @property
    def advice(self) -> str:
        return f"is {self.name} running there?{f' (`{self.start}`)' if self.start else ''}"


class EngineClient:
    """Requests to one server, as an async context manager.

    `model`: name of the model in requests. `token`: sent as a bearer token, which these engines call their API key.
    Every call raises EndpointError: Unreachable, Refused or BrokenReply.
    """

    kind = EngineKind("the engine")
    idle_connections = 32  # connections that stay open between requests

    def __init__(
        self,
        url: str,
        *,
        model: str = "",
        token: str | None = None,
        source: str = "",
        connect_timeout: float = CONNECT_TIMEOUT,
        idle_timeout: float = IDLE_TIMEOUT,
    ) -> None:
        self.url = url.rstrip("/")
        self.model = model
        self.source = source
        self._patience = idle_timeout  # seconds to wait for an answer that is read as a whole
        self._http = open_client(
            self.url,
            token=token,
            connect_timeout=connect_timeout,
            idle_timeout=idle_timeout,
            idle_connections=self.idle_connections,
        )

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self._http.aclose()

    async def get(self, path: str, model: type[_Answer]) -> _Answer:
        return self.validate(await self._sent("GET", path), model)

    async def post(self, path: str, body: dict[str, Any], model: type[_Answer]) -> _Answer:
        return self.validate(await self._sent("POST", path, body), model)

    async def post_for_list(self, path: str, body: dict[str, Any], model: type[_Answer]) -> list[_Answer]:
        """POST to an endpoint that answers with an array; a lone object counts as an array of one."""
        content = await self._sent("POST", path, body)
        if not content.lstrip().startswith(b"["):
            return [self.validate(content, model)]
        try:
            return TypeAdapter(list[model]).validate_json(content)  # type: ignore[valid-type]
        except ValidationError as error:
            raise self.wrong_engine(content) from error

    async def events(self, path: str, body: dict[str, Any]) -> AsyncGenerator[tuple[bytes, int], None]:
        """Yield the data of each server-sent event, and the index (from 1) of the socket read that completed it."""
        with self._translated():
            async with self._http.stream("POST", path, json=body) as response:
                if response.is_error:
                    self._check(await read_whole(response))
                async for event in _events(raw_pieces(response)):
                    yield event

    def validate(self, body: bytes, model: type[_Answer]) -> _Answer:
        try:
            return model.model_validate_json(body)
        except ValidationError as error:
            raise self.wrong_engine(body) from error

    def wrong_engine(self, body: bytes) -> BrokenReply:
        """The error for an answer that this engine doesn't send."""
        start = body[:60].decode("utf-8", "replace")
        return self.broken_reply(f"the answer isn't what {self.kind.name} sends: {start!r}")

    def broken_reply(self, what: str) -> BrokenReply:
        return BrokenReply(f"{self.url}: {what}", url=self.url)

    def refusal(self, error: Any, status: int) -> Refused:
        """The exception for an error that the engine reported, with the engine's message."""
        return Refused(f"{self.url}: {_error_line(error)}", url=self.url, status=status)

    async def _sent(self, method: str, path: str, body: dict[str, Any] | None = None) -> bytes:
        with self._translated():
            request = self._http.build_request(method, path, json=body)
            limit = ANSWERS.whole if body is None else ANSWERS.scores
            response = await send_whole(self._http, request, patience=self._patience, limit=limit)
        self._check(response)
        return response.content

    def _check(self, response: httpx.Response) -> None:
        if not response.is_error:
            return
        try:
            message = _error_line(_error_message(read_json(response.content)))
        except ValueError:
            message = f"HTTP {response.status_code} {response.reason_phrase}".strip()
        if response.status_code in (401, 403):
            message += " (a token is sent when the endpoint has token_env)"
        raise Refused(f"{self.url}: {message}", url=self.url, status=response.status_code)

    def _translated(self) -> AbstractContextManager[None]:
        return map_httpx_errors(self.url, self.source, self.kind.advice)


async def _events(reads: AsyncIterator[bytes]) -> AsyncIterator[tuple[bytes, int]]:
    number = 0

    async def counted() -> AsyncIterator[bytes]:
        nonlocal number
        async for read in reads:
            number += 1
            yield read

    async for line in split_lines(counted(), ended=True):
        # an error during a reply comes as "error: {...}" from older llama-servers, as data from all others
        name, _, data = line.strip().partition(b": ")
        if name == b"error":
            yield b'{"error": ' + data + b"}", number
        elif name == b"data" and data != b"[DONE]":
            yield data, number


def _error_message(answer: Any) -> Any:
    """The error in an answer: OpenAI's `error`, FastAPI's `detail`, or `message`."""
    if not isinstance(answer, dict):
        return answer
    return answer.get("error") or answer.get("detail") or answer.get("message")


def _error_line(error: Any) -> str:
    message = error.get("message") if isinstance(error, dict) else error
    return " ".join(str(message or "it failed and gave no reason").split())
