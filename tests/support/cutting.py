"""A connection that breaks after any number of bytes, the headers' included."""

from __future__ import annotations

import asyncio
import socket
import struct
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field

from tests.support.serving import Answer


@dataclass
class Cutting:
    """Answers each request with what `answer` makes of its path and body, and a byte count: None sends all.

    `resets`: the connection is reset, and not only closed.
    """

    answer: Callable[[str, bytes], tuple[Answer, int | None]]
    resets: bool = False
    url: str = ""
    sent: list[bytes] = field(default_factory=list)

    @asynccontextmanager
    async def up(self) -> AsyncIterator[Cutting]:
        server = await asyncio.start_server(self._serve, "127.0.0.1", 0)
        host, port = server.sockets[0].getsockname()
        self.url = f"http://{host}:{port}"
        try:
            yield self
        finally:
            server.close()
            await server.wait_closed()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        head = await reader.readuntil(b"\r\n\r\n")
        length = next(
            (int(line.split(b":")[1]) for line in head.split(b"\r\n") if line.lower().startswith(b"content-length")), 0
        )
        body = await reader.readexactly(length)
        answer, cut = self.answer(head.split()[1].decode(), body)
        whole = _http(answer)
        self.sent.append(whole)
        writer.write(whole[:cut])
        await writer.drain()
        if self.resets and cut is not None:
            linger = struct.pack("ii", 1, 0)
            writer.get_extra_info("socket").setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, linger)
        writer.close()


def _http(answer: Answer) -> bytes:
    """Chunked, as Ollama streams."""
    chunks = b"".join(b"%x\r\n%b\r\n" % (len(chunk), chunk) for chunk in answer.chunks if chunk)
    head = f"HTTP/1.1 {answer.status} OK\r\ncontent-type: {answer.kind}\r\ntransfer-encoding: chunked\r\n"
    return head.encode() + b"connection: close\r\n\r\n" + chunks + b"0\r\n\r\n"
