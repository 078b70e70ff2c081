"""A server behind the proxy that answers anything: one error with its cause, and never a fault of the proxy's."""

from __future__ import annotations

import asyncio
import gzip
import io
import json
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

import httpx
import pytest

from specollama.backends.ollama.client import OllamaServer
from specollama.config.endpoints import Endpoint
from specollama.config.limits import ANSWERS
from specollama.errors import ApiError, Refused
from specollama.server.proxy.serve import serve_in_thread
from specollama.server.proxy.upstream import Upstream
from tests.support.configured import written
from tests.support.scripted_ollama import ScriptedOllama, song
from tests.support.serving import Receive, Send, read_body, serving

TURN = {"messages": [{"role": "user", "content": "Sing."}], "options": {"temperature": 0}}
PLAIN = {**TURN, "model": "duo", "options": {"specollama": {"off": True}}}
OPENAI = {"model": "duo", "messages": TURN["messages"], "options": {"specollama": {"off": True}}}
DONE = {"model": "target", "message": {"role": "assistant", "content": ""}, "done": True, "done_reason": "stop"}


def says(content: str) -> bytes:
    return json.dumps({**DONE, "message": {"role": "assistant", "content": content}, "done": False}).encode() + b"\n"


@dataclass
class Hostile:
    """The scripted server, but for one path. `pause`: seconds between the pieces of that answer."""

    fine: ScriptedOllama = field(default_factory=song)
    path: str = ""
    pieces: Callable[[], Iterator[bytes]] = lambda: iter(())
    status: int = 200
    headers: tuple[tuple[bytes, bytes], ...] = ()
    pause: float = 0.0

    async def __call__(self, scope: Mapping[str, Any], receive: Receive, send: Send) -> None:
        if scope["path"] != self.path:
            await self.fine(scope, receive, send)
            return
        await read_body(receive)
        headers = [(b"content-type", b"application/json"), *self.headers]
        await send({"type": "http.response.start", "status": self.status, "headers": headers})
        for piece in self.pieces():
            await send({"type": "http.response.body", "body": piece, "more_body": True})
            await asyncio.sleep(self.pause)
        await send({"type": "http.response.body", "body": b""})

    def answers(self, path: str, *pieces: bytes, status: int = 200, **headers: str) -> None:
        self.path, self.pieces, self.status, self.pause = path, lambda: iter(pieces), status, 0.0
        self.headers = tuple((name.replace("_", "-").encode(), value.encode()) for name, value in headers.items())


@pytest.fixture(scope="module")
def servers(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Hostile, httpx.Client, io.StringIO]]:
    """The server, a client of a proxy in front of it, and the proxy's log."""
    hostile, log = Hostile(), io.StringIO()
    with serving(hostile) as url:
        file = written(tmp_path_factory.mktemp("hostile"), url, idle=2)
        with serve_in_thread(file, {}) as (base, proxy):
            proxy.log.stream = log
            with httpx.Client(base_url=base, timeout=60, trust_env=False) as client:
                yield hostile, client, log


Servers = tuple[Hostile, httpx.Client, io.StringIO]


@pytest.fixture(autouse=True)
def _no_fault_of_ours(servers: Servers) -> Iterator[None]:
    yield
    log = servers[2].getvalue()
    assert '"trace"' not in log
    assert all(json.loads(line) for line in log.splitlines())


def strict(text: str) -> Any:
    return json.loads(text, parse_constant=lambda name: pytest.fail(f"{name} in JSON"))


ODD = {
    "a message that is a text": b'{"message":"text","done":false}',
    "a message that is a list": b'{"message":[],"done":true}',
    "content that is a number": b'{"message":{"content":3},"done":true}',
    "a negative count": b'{"message":{"content":""},"done":true,"eval_count":-1}',
    "NaN": b'{"message":{"content":""},"done":true,"eval_count":NaN}',
    "an infinite count": b'{"message":{"content":""},"done":true,"eval_count":1e999}',
    "half a token": b'{"message":{"content":""},"done":true,"eval_count":1.5}',
    "a negative duration": b'{"message":{"content":""},"done":true,"total_duration":-5}',
    "done that is a text": b'{"message":{"content":""},"done":"perhaps"}',
    "deep nesting": b'{"message":{"content":""},"x":' + b"[" * 100_000,
    "a list": b"[]",
    "a number": b"3",
    "nothing": b"",
    "a page": b"<html>",
    "bytes": b"\xff\xfe\x00",
    "an error that is a list": b'{"error":[1,2]}',
    "an error that is deep": b'{"error":"{' + b"[" * 1000 + b'"}',
}


@pytest.mark.parametrize("stream", [True, False])
@pytest.mark.parametrize("path", ["/api/chat", "/v1/chat/completions"])
@pytest.mark.parametrize("odd", ODD)
def test_an_odd_answer_is_one_error(servers: Servers, path: str, odd: str, stream: bool) -> None:
    hostile, client, _ = servers
    before = says("La") if stream else b""
    hostile.answers("/api/chat", before, ODD[odd] + b"\n")
    told = client.post(path, json={**(PLAIN if path == "/api/chat" else OPENAI), "stream": stream})
    assert told.status_code in ((200,) if stream else (500, 502)), told.text
    last = told.text.strip().splitlines()[-1].removeprefix("data: ")
    error = strict(last)["error"]
    assert (error if isinstance(error, str) else error["message"]) != ""


def test_counts_are_whole_numbers_whatever_the_server_writes(servers: Servers) -> None:
    hostile, client, _ = servers
    last = json.dumps({**DONE, "eval_count": "3", "prompt_eval_count": 4.0, "eval_duration": None}).encode()
    hostile.answers("/api/chat", says("La"), last)
    told = client.post("/api/chat", json={**PLAIN, "stream": True}).text.splitlines()
    reply = strict(told[-1])
    assert (reply["eval_count"], reply["prompt_eval_count"]) == (3, 4)
    assert "eval_duration" not in reply


def test_what_is_unknown_in_a_line_reaches_the_client(servers: Servers) -> None:
    hostile, client, _ = servers
    hostile.answers("/api/chat", json.dumps({**DONE, "new": {"of": "tomorrow"}}).encode())
    assert client.post("/api/chat", json={**PLAIN, "stream": False}).json()["new"] == {"of": "tomorrow"}


BODIES = {"/api/tags": None, "/api/ps": None, "/api/show": {"model": "duo"}, "/v1/models": None}


@pytest.mark.parametrize("path", BODIES)
@pytest.mark.parametrize(
    "content",
    [
        b'{"models":3}',
        b'{"models":[3,{"name":7},{"name":["a"]},{"name":"a","size":NaN}]}',
        b'{"models":' + b"[" * 100_000,
        b'{"models":[{"name":"a","digest":{"x":1},"size":-1,"modified_at":1e308}],"model_info":{"x":1e999}}',
        b"[]",
        b"\xff",
        b"",
    ],
)
def test_odd_lists_and_descriptions_are_no_fault_of_the_proxys(servers: Servers, path: str, content: bytes) -> None:
    hostile, client, _ = servers
    hostile.answers("/api/tags" if path == "/v1/models" else path, content)
    body = BODIES[path]
    told = client.post(path, json=body) if body else client.get(path)
    assert told.status_code in (200, 502)
    if told.status_code == 200 and path != "/api/show":
        strict(told.text)


@pytest.mark.parametrize(
    ("status", "headers", "words"),
    [
        (301, {"location": "https://tower/api/chat"}, "redirects to https://tower/api/chat: set the"),
        (308, {"location": "https://tower/api/chat"}, "redirects to https://tower/api/chat: set the"),
    ],
)
@pytest.mark.parametrize("model", ["duo", "draft"])
def test_a_status_that_helps_nobody_is_told_with_the_remedy(
    servers: Servers, status: int, headers: dict[str, str], words: str, model: str
) -> None:
    hostile, client, _ = servers
    hostile.answers("/api/chat", b"{}", status=status, **headers)
    told = client.post("/api/chat", json={**PLAIN, "model": model})
    assert told.status_code == 502
    assert words in told.json()["error"]


@pytest.mark.parametrize("path", ["/api/chat", "/api/show", "/api/tags"])
def test_a_compressed_answer_is_refused_before_it_is_unpacked(servers: Servers, path: str) -> None:
    hostile, client, _ = servers
    hostile.answers(path, gzip.compress(b" " * 10_000_000), content_encoding="gzip")
    told = client.get(path) if path == "/api/tags" else client.post(path, json=PLAIN)
    assert told.status_code == 502
    assert "compressed" in told.json()["error"]


def test_an_answer_without_end_is_given_up(servers: Servers) -> None:
    hostile, client, _ = servers
    piece = b'"' + b"x" * 999_998 + b'"'
    hostile.answers("/api/show", *[piece] * (ANSWERS.whole // len(piece) + 2))
    told = client.post("/api/show", json={"model": "duo"})
    assert (told.status_code, "larger than 32 MiB" in told.text) == (502, True)
    hostile.path = "/api/chat"
    told = client.post("/api/chat", json=PLAIN)
    assert (told.status_code, "a line of more than 32 MiB" in told.text) == (502, True)


def test_readiness_waits_for_no_trickle(servers: Servers) -> None:
    hostile, client, _ = servers
    hostile.answers("/api/version", *[b" "] * 1000)
    hostile.pause = 0.2
    told = client.get("/readyz")
    assert told.status_code == 503
    assert "gave no byte in time" in told.json()["endpoints"][0]["error"]


def test_emoji_halves_are_joined_in_thinking_and_content(servers: Servers) -> None:
    hostile, client, _ = servers
    texts = [
        ("\\ud83c", ""), ("\\udf0a", ""), ("", "\\ud83d"), ("", "\\ude00!"), ("\\ud83c", ""), ("", "end"),
    ]  # fmt: skip
    lines = [
        b'{"message":{"role":"assistant","thinking":"%s","content":"%s"},"done":false}\n' % (one.encode(), two.encode())
        for one, two in texts
    ]
    hostile.answers("/api/chat", *lines, json.dumps(DONE).encode())
    told = [
        strict(line)["message"] for line in client.post("/api/chat", json={**PLAIN, "stream": True}).text.splitlines()
    ]
    assert "".join(each.get("thinking", "") for each in told) == "\U0001f30a\ufffd"
    assert "".join(each["content"] for each in told) == "\U0001f600!end"


async def test_a_status_that_is_none_of_https_is_told() -> None:
    transport = httpx.MockTransport(lambda request: httpx.Response(999, json={}))
    endpoint = Endpoint("http://tower", "a test")
    async with httpx.AsyncClient(transport=transport) as http:
        with pytest.raises(ApiError, match="the status 999") as fault:
            await Upstream(endpoint, None, http).json("GET", "/api/tags")
        assert fault.value.status == 502
    async with OllamaServer("http://tower", transport=transport) as server:
        with pytest.raises(Refused, match="HTTP 999") as refused:
            await server.version()
        assert refused.value.status == 502


async def test_a_base_that_is_openais_is_told_with_the_remedy() -> None:
    transport = httpx.MockTransport(lambda request: httpx.Response(404, text="404 page not found"))
    async with OllamaServer("http://tower/v1", transport=transport) as server:
        with pytest.raises(Refused, match=r"/v1 is OpenAI's API: leave it out of the URL"):
            await server.version()
