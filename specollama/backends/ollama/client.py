"""One Ollama server over HTTP: bodies in, wire types out, every failure one of errors.py."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncGenerator
from contextlib import AbstractContextManager, aclosing, suppress
from difflib import get_close_matches
from types import TracebackType
from typing import Any, Self, TypeVar

import httpx
from pydantic import ValidationError

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
from specollama.backends.ollama.schema import (
    ChatReply,
    GenerateReply,
    ListedModel,
    PsReply,
    Reply,
    ShowReply,
    TagsReply,
    VersionReply,
    Wire,
)
from specollama.backends.ollama.surrogate_pairs import SurrogateJoiner
from specollama.errors import BrokenReply, EndpointError, ModelMissing, Refused

_COUNTS = tuple(name for name in Reply.model_fields if name.endswith(("_count", "_duration")))
_LONGEST_ERROR = 4000  # characters of what a server says of a failure
_Wire = TypeVar("_Wire", bound=Wire)
_Reply = TypeVar("_Reply", bound=Reply)


class OllamaServer:
    """The API of one server. Close it with `aclose`, or use it as an async context manager.

    `source` says where the address was set (a flag, a variable, a file and key), for messages. Raises
    EndpointError from every call: Unreachable, ModelMissing, Refused or BrokenReply.
    """

    def __init__(
        self,
        url: str,
        *,
        token: str | None = None,
        source: str = "",
        connect_timeout: float = CONNECT_TIMEOUT,
        idle_timeout: float = IDLE_TIMEOUT,
        transport: httpx.AsyncBaseTransport | None = None,
    ) -> None:
        self.url = url.rstrip("/")
        self.source = source
        self._patience = idle_timeout  # for an answer that is read as a whole
        self._http = open_client(
            self.url,
            token=token,
            connect_timeout=connect_timeout,
            idle_timeout=idle_timeout,
            transport=transport,
        )

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.aclose()

    async def aclose(self) -> None:
        await self._http.aclose()

    async def generate(self, body: dict[str, Any], sent: asyncio.Event | None = None) -> GenerateReply:
        """POST /api/generate with `stream` false: the whole reply; BrokenReply when it isn't `done`.

        `sent` is set once the request is on its way.
        """
        reply = await self._post("/api/generate", body | {"stream": False}, GenerateReply, sent)
        if not reply.done or not reply.done_reason:
            raise self._broken("the reply was broken off (done: false)")
        return reply

    def stream_generate(self, body: dict[str, Any]) -> AsyncGenerator[GenerateReply, None]:
        """POST /api/generate, chunk by chunk; the last is `done`."""
        return self._stream("/api/generate", body | {"stream": True}, GenerateReply)

    def stream_chat(self, body: dict[str, Any]) -> AsyncGenerator[ChatReply, None]:
        """POST /api/chat, chunk by chunk; the last is `done`."""
        return self._stream("/api/chat", body | {"stream": True}, ChatReply)

    async def forward(self, path: str, body: dict[str, Any]) -> AsyncGenerator[dict[str, Any], None]:
        """POST: the JSON objects of the answer as they come, with all that they hold; the last is `done`.

        Where `stream` is false there is one, done or not.
        """
        async with aclosing(self._streamed(path, body)) as lines:
            async for line, status in lines:
                chunk = self._object(line)
                if "error" in chunk:
                    raise self._mid_reply_error(chunk["error"], status)
                yield self._checked(chunk, line, ChatReply if path == "/api/chat" else GenerateReply)
                if chunk.get("done") or body.get("stream") is False:
                    return
        raise self._broken("the reply ended before its last line (no done: true)")

    async def render(self, body: dict[str, Any]) -> str | None:
        """The prompt that the server's own template makes of a request; None when it can't tell (before 0.11.5).

        With `messages` it is one to /api/chat, else one to /api/generate.
        """
        request = body | {"stream": False, "_debug_render_only": True}
        chat = "messages" in body
        reply: Reply = (
            await self._post("/api/chat", request, ChatReply)
            if chat
            else await self._post("/api/generate", request, GenerateReply)
        )
        return reply.debug_info.rendered_template if reply.debug_info else None

    async def show(self, model: str, *, verbose: bool = False) -> ShowReply:
        try:
            return await self._post("/api/show", {"model": model, "verbose": verbose}, ShowReply)
        except ModelMissing as error:
            raise await self._missing(model, error) from error

    async def tags(self) -> list[ListedModel]:
        return (await self._get("/api/tags", TagsReply)).models

    async def ps(self) -> PsReply:
        return await self._get("/api/ps", PsReply)

    async def version(self) -> str:
        return (await self._get("/api/version", VersionReply)).version

    async def _missing(self, model: str, error: ModelMissing) -> ModelMissing:
        """The same error, with what is there and what to do."""
        names = [listed.name for listed in await self.tags()]
        close = get_close_matches(model, names, n=3, cutoff=0.4) or sorted(names)[:5]
        there = f"there: {', '.join(close)}" if close else "it has no models"
        advice = f"get it with `ollama pull {model}`"
        return ModelMissing(f"{self.url} has no model {model!r} ({there}); {advice}", url=self.url)

    async def _get(self, path: str, wire: type[_Wire]) -> _Wire:
        return self._parsed(await self._sent("GET", path), wire)

    async def _post(
        self, path: str, body: dict[str, Any], wire: type[_Wire], sent: asyncio.Event | None = None
    ) -> _Wire:
        return self._parsed(await self._sent("POST", path, body, sent), wire)

    async def _sent(
        self, method: str, path: str, body: dict[str, Any] | None = None, sent: asyncio.Event | None = None
    ) -> httpx.Response:
        with self._translated():
            signal = _signal_when_sent(sent) if sent else None
            request = self._http.build_request(method, path, json=body, extensions=signal)
            return await send_whole(self._http, request, patience=self._patience)

    async def _stream(self, path: str, body: dict[str, Any], wire: type[_Reply]) -> AsyncGenerator[_Reply, None]:
        async with aclosing(self._streamed(path, body)) as lines:
            async for line, status in lines:
                chunk = self._validated(line, wire)
                if chunk.error is not None:
                    raise self._mid_reply_error(chunk.error, status)
                yield chunk
                if chunk.done:
                    return
        raise self._broken("the reply ended before its last line (no done: true)")

    async def _streamed(self, path: str, body: dict[str, Any]) -> AsyncGenerator[tuple[bytes, int], None]:
        """The lines of an answer as they come, mended, each with the answer's status."""
        with self._translated():
            async with self._http.stream("POST", path, json=body) as response:
                if not response.is_success:
                    raise self._refused(await read_whole(response))
                mender = SurrogateJoiner()
                async for line in split_lines(raw_pieces(response)):
                    if line.strip():
                        yield mender.join(line), response.status_code

    def _parsed(self, response: httpx.Response, wire: type[_Wire]) -> _Wire:
        if not response.is_success:
            raise self._refused(response)
        return self._validated(SurrogateJoiner().join(response.content), wire)

    def _validated(self, body: bytes, wire: type[_Wire]) -> _Wire:
        try:
            return wire.model_validate_json(body)
        except ValidationError as error:
            raise self._unlike_ollama(body) from error

    def _object(self, line: bytes) -> dict[str, Any]:
        try:
            chunk = read_json(line)
        except ValueError:
            chunk = None
        if isinstance(chunk, dict):
            return chunk
        raise self._unlike_ollama(line)

    def _checked(self, chunk: dict[str, Any], line: bytes, wire: type[Reply]) -> dict[str, Any]:
        """The same chunk, what is known in it of the types that Ollama sends; counts that are null are left out."""
        try:
            read = wire.model_validate(_without_nulls(chunk))
        except ValidationError as error:
            raise self._unlike_ollama(line) from error
        counts = {name: getattr(read, name) for name in _COUNTS if name in chunk}
        rest = {name: value for name, value in chunk.items() if name not in counts}
        return rest | {name: count for name, count in counts.items() if count is not None}

    def _unlike_ollama(self, body: bytes) -> BrokenReply:
        return self._broken(f"the answer isn't what Ollama sends: {body[:60].decode('utf-8', 'replace')!r}")

    def _mid_reply_error(self, error: Any, status: int) -> Refused:
        """An error in the middle of a reply."""
        return Refused(f"{self.url}: {_error_line(error)}", url=self.url, status=status, said=_raw_error(error))

    def _refused(self, response: httpx.Response) -> EndpointError:
        message, status = f"{self.url}: {_error_text(response)}", response.status_code
        said = _raw_error(_error(response))
        if status == 404 and self.url.endswith("/v1"):
            return Refused(f"{message} (/v1 is OpenAI's API: leave it out of the URL)", url=self.url, status=502)
        if status == 404 and response.headers.get("content-type", "").startswith("application/json"):
            return ModelMissing(message, url=self.url, said=said)
        if status in (401, 403):
            message += " (a token is sent when the endpoint has token_env)"
        if response.has_redirect_location:
            message = f"{self.url}: it redirects to {response.headers['location'][:200]}: set the server's URL to that"
        return Refused(message, url=self.url, status=status if 400 <= status < 600 else 502, said=said)

    def _broken(self, what: str) -> BrokenReply:
        return BrokenReply(f"{self.url}: {what}", url=self.url)

    def _translated(self) -> AbstractContextManager[None]:
        return map_httpx_errors(self.url, self.source, "is Ollama running there? (`ollama serve`)")


def _signal_when_sent(sent: asyncio.Event) -> dict[str, Any]:
    """Sets the event when the body is written, or a connection has to be made first: others needn't wait for that."""

    async def trace(event: str, info: dict[str, Any]) -> None:
        if event.endswith((".send_request_body.complete", ".connect_tcp.started")):
            sent.set()

    return {"trace": trace}


def _error_text(response: httpx.Response) -> str:
    """What an error answer says; the status where it says nothing."""
    return _error_line(_error(response)) or f"HTTP {response.status_code} {response.reason_phrase}".strip()


def _error(response: httpx.Response) -> Any:
    """The `error` of an answer; None where there is none."""
    try:
        return read_json(response.content).get("error")
    except (ValueError, AttributeError):
        return None


def _raw_error(error: Any) -> str:
    """An `error` as it came: a client of a client may read it by machine."""
    return (error if isinstance(error, str) else "" if error is None else json.dumps(error))[:_LONGEST_ERROR]


def _error_line(error: Any) -> str:
    """Ollama's `error` on one line. It may hold the engine's own JSON once more."""
    if isinstance(error, str) and error.startswith("{"):
        with suppress(ValueError):
            error = read_json(error.encode("utf-8", "replace")).get("error") or error
    if isinstance(error, dict):
        error = error.get("message")
    return " ".join(str(error or "")[:_LONGEST_ERROR].split())


def _without_nulls(chunk: dict[str, Any]) -> dict[str, Any]:
    """Without the nulls of a reply and of its message, which mean what an absent key does."""
    given = {name: value for name, value in chunk.items() if value is not None}
    if isinstance(message := given.get("message"), dict):
        given["message"] = {
            "role": "assistant",
            **{name: value for name, value in message.items() if value is not None},
        }
    return given
