"""Where a server listens, and who may come: other machines only with a token."""

from __future__ import annotations

import os
import socket

from specollama.config.endpoints import is_loopback
from specollama.errors import RunError, UsageError

TOKEN = "SPECOLLAMA_TOKEN"
"""The environment variable without which only loopback addresses are served."""

_BACKLOG = 128  # connections that may wait to be accepted


def required_token(host: str) -> str | None:
    """The token that requests must carry; None on a loopback address when there is none. Else UsageError."""
    token = os.environ.get(TOKEN) or None
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
