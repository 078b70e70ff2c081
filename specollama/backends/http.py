"""Shared by all HTTP clients: opening them, certificates, timeouts, error mapping, and sending requests in order."""

from __future__ import annotations

import asyncio
import os
import socket
import ssl
from collections.abc import Callable, Coroutine, Iterable, Iterator
from contextlib import contextmanager
from functools import cache
from typing import Any, TypeVar

import httpx

from specollama.backends import request_log
from specollama.config.endpoints import is_loopback
from specollama.errors import BrokenReply, Unreachable

_Result = TypeVar("_Result")


CONNECT_TIMEOUT = 10.0  # seconds


IDLE_TIMEOUT = 300.0  # seconds without a byte: a large model may take minutes to load


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
    """
    return httpx.AsyncClient(
        base_url=url,
        headers={"Authorization": f"Bearer {token}"} if token else None,
        timeout=httpx.Timeout(idle_timeout, connect=connect_timeout),
        limits=httpx.Limits(max_connections=None, max_keepalive_connections=idle_connections, keepalive_expiry=30),
        verify=ssl_context(),
        trust_env=is_remote(url),  # a proxy for the outside can't reach this machine's own
        transport=transport,
        event_hooks=request_log.hooks(),
    )


@contextmanager
def map_httpx_errors(url: str, source: str, advice: str) -> Iterator[None]:
    """Turn httpx's errors into EndpointErrors. `advice`: what the user can do if there is no connection."""
    where = f"{url}{f' (from {source})' if source else ''}"
    try:
        yield
    except (httpx.ConnectError, httpx.ConnectTimeout) as error:
        request_log.LOG.warning("%s: no connection: %s", url, root_cause(error))
        raise Unreachable(f"can't reach {where}: {root_cause(error)}", url=url, advice=advice) from error
    except httpx.TimeoutException as error:
        request_log.LOG.warning("%s: no byte in time", url)
        raise Unreachable(f"{where} gave no byte in time and was given up", url=url) from error
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
