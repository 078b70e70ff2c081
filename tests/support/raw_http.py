"""HTTP as bytes, for what no client library would send."""

from __future__ import annotations

import json
import socket
from typing import Any

import httpx


def head(method: str, path: str, *headers: str, version: str = "1.1", host: str | None = "127.0.0.1") -> bytes:
    """Request line and headers. `host`: None for none."""
    lines = [f"{method} {path} HTTP/{version}", *([f"Host: {host}"] if host else []), *headers]
    return "".join(f"{line}\r\n" for line in lines).encode("latin-1") + b"\r\n"


def post(path: str, body: Any, *headers: str, version: str = "1.1") -> bytes:
    """A whole request; `body`: bytes, or what becomes JSON."""
    content = body if isinstance(body, bytes) else json.dumps(body).encode()
    return head("POST", path, f"Content-Length: {len(content)}", *headers, version=version) + content


def connect(url: str) -> socket.socket:
    address = httpx.URL(url)
    return socket.create_connection((address.host, address.port), timeout=30)


def read_all(connection: socket.socket) -> bytes:
    """What comes until the other side closes."""
    found = b""
    try:
        while piece := connection.recv(65536):
            found += piece
    except ConnectionResetError:
        pass
    return found


def exchange(url: str, sent: bytes) -> bytes:
    """Send, and read until the other side closes: ask for `Connection: close`, or speak HTTP/1.0."""
    with connect(url) as connection:
        connection.sendall(sent)
        return read_all(connection)


def status(answer: bytes) -> int:
    return int(answer.split(b" ", 2)[1]) if answer else 0
