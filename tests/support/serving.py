"""Servers of the tests' own: one that replays what it is given, and one that passes on and writes down."""

from __future__ import annotations

import asyncio
import json
import ssl
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass, field
from typing import Any

import httpx
import uvicorn

from specollama.server.http.listening import bind

Receive = Callable[[], Any]
Send = Callable[[dict[str, Any]], Any]
NDJSON = "application/x-ndjson"
JSON = "application/json; charset=utf-8"
_NO_TLS = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)  # without certificates, whose loading takes longer than a request


@contextmanager
def serving(app: Any) -> Iterator[str]:
    """Serve an ASGI application, or a configuration of uvicorn, on a free loopback port, in a thread; gives its URL."""
    config = app if isinstance(app, uvicorn.Config) else _plain_config(app)
    server = uvicorn.Server(config)
    with closing(bind("127.0.0.1", 0)) as listener:
        thread = threading.Thread(target=server.run, args=([listener],))
        thread.start()
        try:
            yield f"http://127.0.0.1:{listener.getsockname()[1]}"
        finally:
            server.should_exit = True
            thread.join()


def _plain_config(app: Any) -> uvicorn.Config:
    return uvicorn.Config(app, lifespan="off", log_level="critical", access_log=False, ws="none")


@dataclass
class Stage:
    """A running server whose application may be another in each test."""

    url: str = ""
    app: Any = None

    async def __call__(self, scope: Mapping[str, Any], receive: Receive, send: Send) -> None:
        await self.app(scope, receive, send)


@dataclass(frozen=True)
class Answer:
    """One HTTP answer. `chunks` travel one by one; `breaks`: the connection is dropped after them."""

    chunks: Sequence[bytes] = ()
    status: int = 200
    kind: str = JSON
    breaks: bool = False


def whole(body: Any, status: int = 200) -> Answer:
    return Answer([json.dumps(body).encode()], status)


def lines(*bodies: dict[str, Any]) -> Answer:
    return Answer([json.dumps(body).encode() + b"\n" for body in bodies], kind=NDJSON)


async def send_answer(answer: Answer, send: Send) -> None:
    headers = [(b"content-type", answer.kind.encode())]
    await send({"type": "http.response.start", "status": answer.status, "headers": headers})
    for chunk in answer.chunks:
        await send({"type": "http.response.body", "body": chunk, "more_body": True})
        await asyncio.sleep(0.001)  # a segment of its own
    if answer.breaks:
        raise ConnectionError("dropped on purpose")
    await send({"type": "http.response.body", "body": b""})


async def read_body(receive: Receive) -> bytes:
    body, more = b"", True
    while more:
        message = await receive()
        body += message.get("body", b"")
        more = message.get("more_body", False)
    return body


@dataclass
class Replayed:
    """Answers each path with the next of its answers, the last one again and again. `bodies`: what was asked."""

    answers: dict[str, list[Answer]]
    bodies: list[dict[str, Any]] = field(default_factory=list)

    async def __call__(self, scope: Mapping[str, Any], receive: Receive, send: Send) -> None:
        body = await read_body(receive)
        self.bodies.append(json.loads(body) if body else {})
        left = self.answers.get(scope["path"], [whole({"error": "no such path"}, 404)])
        await send_answer(left.pop(0) if len(left) > 1 else left[0], send)


def replayed(**answers: Answer | list[Answer]) -> Replayed:
    """By the last part of the path: `generate`, `chat`, `show`, `tags`, `version`, `ps`."""
    given = {name: answer if isinstance(answer, list) else [answer] for name, answer in answers.items()}
    return Replayed({f"/api/{name}": answer for name, answer in given.items()})


@dataclass
class Exchange:
    """A request that passed, and how it went. `busy`: requests under way when it came, itself included."""

    path: str
    body: dict[str, Any]
    busy: int = 0
    status: int = 0
    reply: bytes = b""
    disconnected: bool = False
    done: bool = False

    @property
    def model(self) -> str:
        return str(self.body.get("model", ""))

    @property
    def options(self) -> dict[str, Any]:
        return dict(self.body.get("options", {}))

    @property
    def answer(self) -> dict[str, Any]:
        """The last line of the reply."""
        return dict(json.loads(self.reply.rstrip().split(b"\n")[-1]))


@dataclass
class Recorder:
    """Passes every request on to `upstream` and keeps it, in the order of arrival.

    `fault` may answer in the server's place.
    """

    upstream: str
    exchanges: list[Exchange] = field(default_factory=list)
    fault: Callable[[Exchange], Answer | None] = lambda exchange: None

    async def __call__(self, scope: Mapping[str, Any], receive: Receive, send: Send) -> None:
        exchange = Exchange(scope["path"], {})
        self.exchanges.append(exchange)
        try:
            body = await read_body(receive)
            exchange.body = json.loads(body) if body else {}
            exchange.busy = self.busy
            if answer := self.fault(exchange):
                exchange.status, exchange.reply = answer.status, b"".join(answer.chunks)
                await send_answer(answer, send)
                return
            passing = asyncio.ensure_future(self._pass(scope["method"], body, exchange, send))
            leaving = asyncio.ensure_future(receive())
            await asyncio.wait({passing, leaving}, return_when=asyncio.FIRST_COMPLETED)
            exchange.disconnected = not passing.done()
            for task in (passing, leaving):
                task.cancel()
            await asyncio.gather(passing, leaving, return_exceptions=True)
        finally:
            exchange.done = True

    async def _pass(self, method: str, body: bytes, exchange: Exchange, send: Send) -> None:
        async with (
            httpx.AsyncClient(base_url=self.upstream, timeout=300, trust_env=False, verify=_NO_TLS) as client,
            client.stream(method, exchange.path, content=body) as response,
        ):
            exchange.status = response.status_code
            kind = response.headers.get("content-type", JSON).encode()
            headers = [(b"content-type", kind)]
            await send({"type": "http.response.start", "status": response.status_code, "headers": headers})
            async for chunk in response.aiter_bytes():
                exchange.reply += chunk
                await send({"type": "http.response.body", "body": chunk, "more_body": True})
        exchange.done = True
        await send({"type": "http.response.body", "body": b""})

    @property
    def busy(self) -> int:
        """Requests under way."""
        return sum(not exchange.done for exchange in self.exchanges)

    def asked(self, path: str, model: str | None = None) -> list[Exchange]:
        return [each for each in self.exchanges if each.path == path and model in (None, each.model)]

    @property
    def rows(self) -> list[Exchange]:
        return [each for each in self.asked("/api/generate", "target") if each.options["num_predict"] == 1]

    @property
    def extensions(self) -> list[Exchange]:
        """Requests of the target for more than a row."""
        return [each for each in self.asked("/api/generate", "target") if each.options["num_predict"] != 1]

    @property
    def drafts(self) -> list[Exchange]:
        return self.asked("/api/generate", "draft")

    async def quiet(self) -> int:
        """Wait until nothing is under way or on its way; how many requests came in all."""
        async with asyncio.timeout(60):
            count = -1
            while self.busy or count != len(self.exchanges):  # counted in another thread
                count = len(self.exchanges)
                await asyncio.sleep(0.1)
        return count
