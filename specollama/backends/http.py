"""Shared by all HTTP clients: opening them, bounded answers, error mapping, and sending requests in order."""

from __future__ import annotations

import asyncio
import os
import socket
import ssl
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Coroutine, Iterable, Iterator
from contextlib import contextmanager
from functools import cache
from typing import Any, TypeVar

import httpx
from pydantic_core import from_json

from specollama.backends import request_log
from specollama.config.endpoints import is_loopback
from specollama.config.limits import ANSWERS, MIB
from specollama.errors import BrokenReply, ConfigError, Unreachable

_Result = TypeVar("_Result")


CONNECT_TIMEOUT = 10.0  # seconds


IDLE_TIMEOUT = 300.0  # seconds without a byte: a large model may take minutes to load


class UnusableAnswer(httpx.RequestError):
    """An answer that no server sends in earnest, given up where that was seen."""


def open_client(
    url: str,
    *,
    token: str | None = None,
    connect_timeout: float = CONNECT_TIMEOUT,
    idle_timeout: float | None = IDLE_TIMEOUT,
    idle_connections: int = 32,
    transport: httpx.AsyncBaseTransport | None = None,
) -> httpx.AsyncClient:
    """Return a client for one server, whose requests are logged (`request_log`). Close it with `aclose`.

    `token`: sent as a bearer token. Timeouts are in seconds; `idle_timeout`: between two bytes, None: no limit.
    `idle_connections`: that stay open for the next request, for 30 seconds.

    A proxy of the environment (HTTPS_PROXY and the like) is used for other machines only: it can't reach this one's
    own servers. Raises ConfigError for one that can't be used.
    """
    headers = {"Accept-Encoding": "identity"}  # a compressed answer has no bound
    try:
        return httpx.AsyncClient(
            base_url=url,
            headers=headers | ({"Authorization": f"Bearer {token}"} if token else {}),
            timeout=httpx.Timeout(idle_timeout, connect=connect_timeout),
            limits=httpx.Limits(max_connections=None, max_keepalive_connections=idle_connections, keepalive_expiry=30),
            verify=ssl_context(),
            trust_env=is_remote(url),
            transport=transport,
            event_hooks=request_log.hooks(),
        )
    except (ImportError, ValueError, httpx.InvalidURL) as error:
        raise ConfigError(f"{url}: {_proxy_fault(error)}") from None


def _proxy_fault(error: Exception) -> str:
    names = ("HTTP_PROXY", "HTTPS_PROXY", "ALL_PROXY")
    given = [name for name in names if os.environ.get(name) or os.environ.get(name.lower())]
    where = f"the proxy in {', '.join(given)}" if given else "a proxy of this system's settings"
    if isinstance(error, ImportError):
        return f"{where} is a SOCKS proxy, which needs a package: pip install socksio (or name the server in NO_PROXY)"
    return f"{where} can't be used: {error}"


async def send_whole(
    client: httpx.AsyncClient, request: httpx.Request, *, patience: float | None, limit: int = ANSWERS.whole
) -> httpx.Response:
    """Send, and read all of the answer (`limit` bytes at most), however it comes, within `patience` seconds.

    Raises httpx's errors, among them UnusableAnswer for what is too large or compressed, and TimeoutError.
    """
    async with asyncio.timeout(patience):
        response = await client.send(request, stream=True)
        try:
            return await read_whole(response, limit)
        finally:
            await response.aclose()


async def read_whole(response: httpx.Response, limit: int = ANSWERS.whole) -> httpx.Response:
    """An answer that is open as a stream, with its body. Raises UnusableAnswer beyond `limit` bytes."""
    content = bytearray()
    async for piece in raw_pieces(response):
        content += piece
        if len(content) > limit:
            raise UnusableAnswer(f"the answer is larger than {limit // MIB} MiB")
    return httpx.Response(
        response.status_code,
        headers=response.headers,
        content=bytes(content),
        request=response.request,
        extensions=response.extensions,
    )


async def raw_pieces(response: httpx.Response) -> AsyncGenerator[bytes, None]:
    """The bytes of an answer as they come. Raises UnusableAnswer for a compressed one: nobody has asked for it."""
    encoding = response.headers.get("content-encoding", "identity")
    if encoding.strip().lower() not in ("", "identity"):
        raise UnusableAnswer(f"the answer is compressed ({encoding[:40]}), though that wasn't asked for")
    async for piece in response.aiter_bytes():
        yield piece


async def split_lines(
    pieces: AsyncIterator[bytes], limit: int = ANSWERS.line, *, ended: bool = False
) -> AsyncGenerator[bytes, None]:
    r"""The lines of a body, cut at \n alone: str.splitlines cuts at U+0085 too, which Ollama leaves as it is.

    `ended`: what comes after the last \n is left out. Raises UnusableAnswer for a line of more than `limit` bytes.
    """
    rest = bytearray()
    async for piece in pieces:
        *ends, last = piece.split(b"\n")
        for end in ends:
            rest += end
            yield bytes(rest)
            rest.clear()
        rest += last  # each byte is copied once, however long the line
        if len(rest) > limit:
            raise UnusableAnswer(f"the answer has a line of more than {limit // MIB} MiB")
    if rest and not ended:
        yield bytes(rest)


def read_json(content: bytes) -> Any:
    """A JSON value. Raises ValueError, for NaN and for deep nesting as well, which Python's own reader doesn't."""
    return from_json(content, allow_inf_nan=False)


@contextmanager
def map_httpx_errors(url: str, source: str, advice: str) -> Iterator[None]:
    """Turn httpx's errors into EndpointErrors. `advice`: what the user can do if there is no connection."""
    where = f"{url}{f' (from {source})' if source else ''}"
    try:
        yield
    except (httpx.ConnectError, httpx.ConnectTimeout) as error:
        request_log.LOG.warning("%s: no connection: %s", url, root_cause(error))
        raise Unreachable(f"can't reach {where}: {root_cause(error)}", url=url, advice=advice) from error
    except (httpx.TimeoutException, TimeoutError) as error:
        request_log.LOG.warning("%s: no byte in time", url)
        raise Unreachable(f"{where} gave no byte in time and was given up", url=url) from error
    except UnusableAnswer as error:
        raise BrokenReply(f"{where}: {error}", url=url) from error
    except (httpx.RequestError, httpx.InvalidURL) as error:
        request_log.LOG.warning("%s: the connection broke (%s)", url, type(error).__name__)
        raise BrokenReply(f"{where}: the connection broke: {root_cause(error)}", url=url) from error


async def send_in_order(requests: Iterable[Callable[[asyncio.Event], Coroutine[Any, Any, _Result]]]) -> list[_Result]:
    """Run requests concurrently, but send them one after another, because httpx doesn't guarantee an order.

    Each request gets an event to set once it is sent. The first exception cancels the other requests and is raised.
    """
    tasks: list[asyncio.Task[_Result]] = []
    try:
        for request in requests:
            sent = asyncio.Event()
            tasks.append(asyncio.create_task(request(sent)))
            tasks[-1].add_done_callback(lambda _, sent=sent: sent.set())  # type: ignore[misc]
            await sent.wait()
        return await asyncio.gather(*tasks)
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


def root_cause(error: BaseException) -> str:
    """Message of the operating system inside httpx's error, or else the error's own message."""
    if isinstance(error, httpx.ConnectTimeout):
        return "no answer in time"
    deeper: BaseException | None = error
    while deeper is not None:
        if isinstance(deeper, socket.gaierror):
            return f"{deeper.strerror}"
        if isinstance(deeper, ssl.SSLError):
            return f"TLS failed: {(deeper.reason or str(deeper)).replace('_', ' ').lower()}"
        if isinstance(deeper, OSError) and deeper.errno:
            return os.strerror(deeper.errno)
        grouped = deeper.exceptions[0] if isinstance(deeper, BaseExceptionGroup) else None
        deeper = grouped or deeper.__cause__ or deeper.__context__
    return str(error) or type(error).__name__


@cache
def ssl_context() -> ssl.SSLContext:
    """Return the TLS context with the trusted certificates, loaded once because that takes longer than a request."""
    return httpx.create_ssl_context()


def is_remote(url: str) -> bool:
    """Whether the URL is not a loopback address, so that a proxy may apply."""
    return not is_loopback(httpx.URL(url).host)
