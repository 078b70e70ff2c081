"""ollama's clients, with speculative decoding for pairs: the same methods, arguments, responses and exceptions.

from specollama import Client

client = Client()
reply = client.chat("coder", [{"role": "user", "content": "Write a bubble sort in C."}])
print(reply.message.content, reply.specollama["acceptance_rate"])
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Generator, Iterator, Mapping, Sequence
from contextlib import aclosing, closing, contextmanager
from pathlib import Path
from threading import Lock
from typing import Any, Literal, TypedDict, Unpack, overload

import ollama
from pydantic import BaseModel

from specollama.client import portal
from specollama.config import trust
from specollama.config.loading import Config
from specollama.errors import ApiError, EndpointError, SpecollamaError, Unreachable
from specollama.pairs.answer import PairResponse
from specollama.pairs.pool import PairPool

_SPECULATED = {"/api/chat": True, "/api/generate": False}  # whether it is a chat


class ChatResponse(ollama.ChatResponse):
    """ollama's response. `specollama`: counters of the reply in its last chunk; None elsewhere and for other models."""

    specollama: dict[str, Any] | None = None


class GenerateResponse(ollama.GenerateResponse):
    """ollama's response. `specollama`: counters of the reply in its last chunk; None elsewhere and for other models."""

    specollama: dict[str, Any] | None = None


_RESPONSE_CLASSES: Mapping[type[BaseModel], type[BaseModel]] = {
    ollama.ChatResponse: ChatResponse,
    ollama.GenerateResponse: GenerateResponse,
}


class _Common(TypedDict, total=False):
    think: bool | str | None
    logprobs: bool | None
    top_logprobs: int | None
    format: Any
    options: Mapping[str, Any] | ollama.Options | None
    keep_alive: float | str | None


class _Chat(_Common, total=False):
    tools: Sequence[Mapping[str, Any] | ollama.Tool | Callable[..., Any]] | None


class _Generate(_Common, total=False):
    system: str | None
    template: str | None
    context: Sequence[int] | None
    raw: bool | None
    images: Sequence[str | bytes | ollama.Image] | None
    width: int | None
    height: int | None
    steps: int | None


_Messages = Sequence[Mapping[str, Any] | ollama.Message] | None


# Both clients repeat ollama's two methods only for their types: the responses have the counters.


class Client(ollama.Client):
    """`ollama.Client` that answers for pairs: pass a pair's name, or its target's, as `model` of `chat` or `generate`.

    `host`: the server for all other requests; None: the configuration's `serve.endpoint`, else OLLAMA_HOST. `config`: a
    file, or a loaded configuration; None: the one that the command line would find. Call `close`, or use it in a `with`
    statement. Raises ConfigError if the configuration is wrong, or is an untrusted one of the working directory.

    `chat` and `generate` raise what ollama's do: ConnectionError if the target's server can't be reached, and
    `ollama.ResponseError` with the server's status if it refuses; 500 for other failures of a pair.
    """

    def __init__(self, host: str | None = None, *, config: Config | Path | str | None = None, **kwargs: Any) -> None:
        self._config = _configuration(config)
        super().__init__(**_connection_arguments(host, self._config, kwargs))
        self._pool = PairPool(self._config, os.environ)
        self._opened = False
        self._opening = Lock()

    def close(self) -> None:
        super().close()  # type: ignore[no-untyped-call]
        if self._opened:
            portal.run_sync(self._pool.__aexit__(None, None, None))
            self._opened = False

    @overload  # type: ignore[override]
    def chat(
        self, model: str = "", messages: _Messages = None, *, stream: Literal[False] = False, **more: Unpack[_Chat]
    ) -> ChatResponse: ...
    @overload
    def chat(
        self, model: str = "", messages: _Messages = None, *, stream: Literal[True], **more: Unpack[_Chat]
    ) -> Iterator[ChatResponse]: ...
    def chat(self, model: str = "", messages: _Messages = None, *, stream: bool = False, **more: Any) -> Any:
        ask: Any = super().chat
        return ask(model, messages, stream=stream, **more)

    @overload  # type: ignore[override]
    def generate(
        self,
        model: str = "",
        prompt: str | None = None,
        suffix: str | None = None,
        *,
        stream: Literal[False] = False,
        **more: Unpack[_Generate],
    ) -> GenerateResponse: ...
    @overload
    def generate(
        self,
        model: str = "",
        prompt: str | None = None,
        suffix: str | None = None,
        *,
        stream: Literal[True],
        **more: Unpack[_Generate],
    ) -> Iterator[GenerateResponse]: ...
    def generate(
        self,
        model: str = "",
        prompt: str | None = None,
        suffix: str | None = None,
        *,
        stream: bool = False,
        **more: Any,
    ) -> Any:
        ask: Any = super().generate
        return ask(model, prompt, suffix, stream=stream, **more)

    def _request(self, cls: Any, *args: Any, stream: bool = False, **kwargs: Any) -> Any:
        answer = _pair_response(self._pool, args, kwargs)
        if answer is None:
            return super()._request(_RESPONSE_CLASSES.get(cls, cls), *args, stream=stream, **kwargs)
        with self._opening:
            if not self._opened:
                portal.run_sync(self._pool.__aenter__())
                self._opened = True
        replies = _replies(answer, _RESPONSE_CLASSES[cls])
        return replies if stream else _single_reply(replies)


class AsyncClient(ollama.AsyncClient):
    """`ollama.AsyncClient` that answers for pairs. Arguments and exceptions are those of `Client`."""

    def __init__(self, host: str | None = None, *, config: Config | Path | str | None = None, **kwargs: Any) -> None:
        self._config = _configuration(config)
        super().__init__(**_connection_arguments(host, self._config, kwargs))
        self._pools: dict[asyncio.AbstractEventLoop, PairPool] = {}
        PairPool(self._config, os.environ)  # a wrong configuration shows here, not at the first request

    async def close(self) -> None:
        await super().close()  # type: ignore[no-untyped-call]
        if pool := self._pools.pop(asyncio.get_running_loop(), None):
            await pool.__aexit__(None, None, None)

    @overload  # type: ignore[override]
    async def chat(
        self, model: str = "", messages: _Messages = None, *, stream: Literal[False] = False, **more: Unpack[_Chat]
    ) -> ChatResponse: ...
    @overload
    async def chat(
        self, model: str = "", messages: _Messages = None, *, stream: Literal[True], **more: Unpack[_Chat]
    ) -> AsyncIterator[ChatResponse]: ...
    async def chat(self, model: str = "", messages: _Messages = None, *, stream: bool = False, **more: Any) -> Any:
        ask: Any = super().chat
        return await ask(model, messages, stream=stream, **more)

    @overload  # type: ignore[override]
    async def generate(
        self,
        model: str = "",
        prompt: str | None = None,
        suffix: str | None = None,
        *,
        stream: Literal[False] = False,
        **more: Unpack[_Generate],
    ) -> GenerateResponse: ...
    @overload
    async def generate(
        self,
        model: str = "",
        prompt: str | None = None,
        suffix: str | None = None,
        *,
        stream: Literal[True],
        **more: Unpack[_Generate],
    ) -> AsyncIterator[GenerateResponse]: ...
    async def generate(
        self,
        model: str = "",
        prompt: str | None = None,
        suffix: str | None = None,
        *,
        stream: bool = False,
        **more: Any,
    ) -> Any:
        ask: Any = super().generate
        return await ask(model, prompt, suffix, stream=stream, **more)

    async def _request(self, cls: Any, *args: Any, stream: bool = False, **kwargs: Any) -> Any:
        answer = _pair_response(await self._pool(), args, kwargs)
        if answer is None:
            return await super()._request(_RESPONSE_CLASSES.get(cls, cls), *args, stream=stream, **kwargs)
        replies = _async_replies(answer, _RESPONSE_CLASSES[cls])
        if stream:
            return replies
        async with aclosing(replies):
            return await anext(replies)

    async def _pool(self) -> PairPool:
        """Return the open pairs of the running event loop, because connections belong to one loop."""
        loop = asyncio.get_running_loop()
        if loop not in self._pools:
            self._pools = {loop: await PairPool(self._config, os.environ).__aenter__()}
        return self._pools[loop]


def _configuration(given: Config | Path | str | None) -> Config:
    if isinstance(given, Config):
        return given
    return trust.configuration(None if given is None else Path(given), os.environ, Path.cwd())


def _connection_arguments(host: str | None, config: Config, kwargs: dict[str, Any]) -> dict[str, Any]:
    """Return the arguments of ollama's own client: its host, and the token for that host."""
    if host is not None or config.table.serve.endpoint is None:
        return {"host": host, **kwargs}
    endpoint = config.default_endpoint(os.environ)
    token = endpoint.token(os.environ)
    headers = {"Authorization": f"Bearer {token}"} if token else {}
    return {"host": endpoint.url, **kwargs, "headers": {**headers, **(kwargs.get("headers") or {})}}


def _pair_response(pool: PairPool, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> PairResponse | None:
    """Return the pair's response to a request; None if the request isn't for a pair."""
    chat, body = _SPECULATED.get(args[1]) if len(args) > 1 else None, kwargs.get("json")
    opened = pool.find(body.get("model")) if chat is not None and body else None
    return None if opened is None or chat is None or body is None else PairResponse(opened, body, chat)


def _replies(answer: PairResponse, kind: type[BaseModel]) -> Generator[Any, None, None]:
    with _as_ollama_raises(), closing(portal.iterate_sync(answer.chunks())) as chunks:
        for chunk in chunks:
            yield kind(**chunk)


def _single_reply(replies: Generator[Any, None, None]) -> Any:
    """Return the only chunk of a request without streaming."""
    [reply] = replies
    return reply


async def _async_replies(answer: PairResponse, kind: type[BaseModel]) -> AsyncGenerator[Any, None]:
    with _as_ollama_raises():
        async with aclosing(answer.chunks()) as chunks:
            async for chunk in chunks:
                yield kind(**chunk)


@contextmanager
def _as_ollama_raises() -> Iterator[None]:
    """Turn the package's errors into those of ollama's clients."""
    try:
        yield
    except Unreachable as error:
        raise ConnectionError(str(error)) from error
    except EndpointError as error:
        raise ollama.ResponseError(error.said or str(error), error.status) from error
    except SpecollamaError as error:
        raise ollama.ResponseError(str(error), 500) from error
    except ApiError as fault:
        raise ollama.ResponseError(fault.text, fault.status) from fault


__all__ = ["AsyncClient", "ChatResponse", "Client", "GenerateResponse"]
