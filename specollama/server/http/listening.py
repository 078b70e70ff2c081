"""Where a server listens, and who may come: other machines only with a token."""

from __future__ import annotations

import os
import socket

from specollama.config.endpoints import is_header_token, is_loopback
from specollama.errors import RunError, UsageError

TOKEN = "SPECOLLAMA_TOKEN"
"""The environment variable without which only loopback addresses are served."""

_BACKLOG = 128  # connections that may wait to be accepted


def given_token() -> str | None:
    """The token that requests must carry, if there is one. UsageError for one that no header can carry."""
    token = os.environ.get(TOKEN) or None
    if token is not None and not is_header_token(token):
        raise UsageError(f"{TOKEN} holds spaces or characters that no HTTP header can carry; nobody could send it")
    return token


def required_token(host: str) -> str | None:
    """The same; UsageError, too, on an address that other machines reach when there is none."""
    token = given_token()
    if token is None and not is_loopback(host):
        raise UsageError(f"{host} is open to other machines: set {TOKEN} to the token they have to send")
    return token


def bind(host: str, port: int) -> socket.socket:
    """A listening socket, so that connections wait from now on instead of being refused. RunError when taken."""
    try:
        family, kind, protocol, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
        # asyncio sends without delay only where the protocol is named: else each reply may wait 40 ms
        listener = socket.socket(family, kind, protocol)
        try:
            listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            listener.bind(address)
            listener.listen(_BACKLOG)
        except OSError:
            listener.close()
            raise
    except OSError as error:
        raise RunError(f"can't listen on {host} port {port}: {error.strerror}") from error
    return listener


def url_of(listener: socket.socket) -> str:
    host, port = listener.getsockname()[:2]
    return f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"
