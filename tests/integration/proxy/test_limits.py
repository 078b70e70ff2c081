"""What a stranger can't make a server hold or wait for, and what odd but honest clients get all the same."""

from __future__ import annotations

import asyncio
import io
import json
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

import httpx
import pytest

from specollama.config.limits import REQUESTS
from specollama.server.embedded.app import make_app
from specollama.server.http.bodies import BodyError, BodyReader, PatientReceive
from specollama.server.http.paths import canonical_path
from specollama.server.http.protocol import uvicorn_config
from specollama.server.proxy.serve import Proxy, serve_in_thread
from tests.support.configured import written
from tests.support.misbehaving import Hanging, Misbehaving
from tests.support.raw_http import connect, exchange, head, post, read_all, status
from tests.support.scripted_ollama import ScriptedOllama, song
from tests.support.serving import serving
from tests.support.waiting import until

Through = Callable[..., httpx.Client]
Up = Callable[[Any], str]
TURN = {"messages": [{"role": "user", "content": "Sing."}], "options": {"temperature": 0}, "stream": False}
CLOSE = "Connection: close"
TIGHT = replace(REQUESTS, headers_time=0.3, body_grace=0.3, bodies=4000)
MAX_BODY = 2000


@pytest.fixture(scope="module")
def servers(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, str]]:
    """A proxy before a scripted pair, and an embedded server without models, both with little patience."""
    with serving(song()) as upstream:
        file = written(tmp_path_factory.mktemp("limits"), upstream, serve=f"max_body = {MAX_BODY}\nmax_requests = 1")
        embedded = uvicorn_config(make_app({}, limits=TIGHT), limits=TIGHT, lifespan="off", log_level="critical")
        with serve_in_thread(file, {}, limits=TIGHT) as (proxy, _), serving(embedded) as other:
            yield {"proxy": proxy, "embedded": other}


@pytest.fixture(params=["proxy", "embedded"])
def server(request: pytest.FixtureRequest, servers: dict[str, str]) -> str:
    return servers[request.param]


@pytest.mark.parametrize(
    ("sent", "expected"),
    [
        pytest.param(head("GET", "/api/version", "Host: evil.example", CLOSE), 400, id="two hosts"),
        pytest.param(
            head("GET", "/api/version", "Origin: http://localhost", "Origin: http://evil.example", CLOSE),
            400,
            id="two origins",
        ),
        pytest.param(head("GET", "/api/version", "Authorization: a", "Authorization: b", CLOSE), 400, id="two tokens"),
        pytest.param(
            post("/api/generate", {"model": "x"}, "Origin: http://evil.example", "Content-Type: text/plain", CLOSE),
            403,
            id="a web page's text/plain",
        ),
        pytest.param(head("GET", "/api/version", "X-Some: " + "x" * 30_000, CLOSE), 200, id="30 KB of cookies"),
        pytest.param(head("GET", "/api/version", version="1.0", host=None), 200, id="HTTP/1.0 without host"),
    ],
)
def test_headers_say_once_who_asks(server: str, sent: bytes, expected: int) -> None:
    assert status(exchange(server, sent)) == expected


@pytest.mark.parametrize(
    "sent",
    [
        pytest.param(head("GET", "/api/version", "X-Long: " + "x" * 4_000_000), id="long header"),
        pytest.param(head("GET", "/api/version", *["X-Many: x"] * 400_000), id="many headers"),
        pytest.param(head("GET", "/" + "x" * 4_000_000), id="long path"),
    ],
)
def test_headers_without_end_are_not_taken(server: str, sent: bytes) -> None:
    with connect(server) as connection:
        try:
            connection.sendall(sent)
            answer = read_all(connection)
        except ConnectionError:  # closed in the middle
            return
    assert status(answer) in (0, 400)


@pytest.mark.parametrize("part", [b"", b"POST /api/chat HT", head("GET", "/")[:-2], head("GET", "/") * 2 + b"GET / HT"])
def test_a_connection_whose_headers_do_not_come_is_closed(server: str, part: bytes) -> None:
    with connect(server) as connection:
        connection.sendall(part)
        read_all(connection)  # ends


@pytest.mark.parametrize("framing", ["Content-Length: 1000", "Transfer-Encoding: chunked"])
def test_a_body_that_stops_coming_is_given_up(server: str, framing: str) -> None:
    with connect(server) as connection:
        connection.sendall(head("POST", "/api/chat", framing) + b'5\r\n{"mod')
        answer = read_all(connection)
    assert status(answer) == 408
    assert json.loads(answer.partition(b"\r\n\r\n")[2])["error"].startswith("the request's body came too slowly")


def test_a_body_that_comes_slowly_holds_nobody_up(servers: dict[str, str]) -> None:
    """The proxy runs one request at a time: its place is taken when the body is there, not before."""
    with connect(servers["proxy"]) as slow:
        slow.sendall(head("POST", "/api/chat", "Content-Length: 1000") + b"{")
        assert status(exchange(servers["proxy"], post("/api/chat", {"model": "duo", **TURN}, CLOSE))) == 200


def test_an_upload_that_stops_coming_is_given_up(servers: dict[str, str]) -> None:
    with connect(servers["proxy"]) as connection:
        connection.sendall(head("POST", "/api/blobs/sha256:0", "Content-Length: 100000") + b"x" * 50)
        answer = read_all(connection)
    assert status(answer) in (0, 408), "the server behind may have answered, or been left"


async def test_patience_grows_with_what_came_and_counts_the_clients_time_alone() -> None:
    pieces = [{"type": "http.request", "body": b"x" * 600, "more_body": True}] * 3

    async def slow() -> Any:
        await asyncio.sleep(0.05)
        return pieces.pop() if pieces else await asyncio.Event().wait()

    limits = replace(REQUESTS, body_grace=0.1, body_rate=600)
    patient = PatientReceive(slow, limits)
    for _ in range(3):
        assert await patient.receive()
        await asyncio.sleep(0.1)  # ours
    with pytest.raises(BodyError):
        await PatientReceive(slow, replace(limits, body_grace=0.01)).receive()


async def test_all_bodies_together_are_bounded_and_given_back() -> None:
    held = asyncio.Event()

    async def waits(scope: Any, receive: Any, send: Any) -> None:
        assert (await receive())["body"] == b"x" * 60
        await held.wait()
        await send({"type": "http.response.start", "status": 200, "headers": []})
        await send({"type": "http.response.body", "body": b""})

    async def receive() -> Any:
        return {"type": "http.request", "body": b"x" * 60}

    statuses: list[int] = []

    async def send(message: Any) -> None:
        if message["type"] == "http.response.start":
            statuses.append(message["status"])

    app = BodyReader(waits, limits=replace(REQUESTS, body=60, bodies=100))
    scope = {"type": "http", "path": "/api/chat", "headers": []}
    first = asyncio.ensure_future(app(scope, receive, send))
    await asyncio.sleep(0)
    await app(scope, receive, send)
    held.set()
    await first
    await app(scope, receive, send)
    assert statuses == [503, 200, 200]


@pytest.mark.parametrize("length", [["Content-Length: 999999"], ["Transfer-Encoding: chunked"]])
def test_too_large_a_body_is_refused_however_it_is_framed(servers: dict[str, str], length: list[str]) -> None:
    content = b"bb8\r\n" + b" " * 3000 if "chunked" in length[0] else b""
    for path in ("/api/chat", "/x/../api/chat", "/api/./chat", "/api/blobs/../chat", "//api/chat", "/v1/embeddings"):
        answer = exchange(servers["proxy"], head("POST", path, *length, CLOSE) + content)
        assert status(answer) == 413
    error = json.loads(answer.partition(b"\r\n\r\n")[2])["error"]
    assert error["message"] == f"request body too large: the limit is {MAX_BODY} bytes"


UPGRADE = ("Connection: Upgrade, HTTP2-Settings", "Upgrade: h2c", "HTTP2-Settings: AAEAAEAAAAIAAAABAAMAAABkAAQBAAAA")


def test_a_request_that_offers_an_upgrade_keeps_its_body(servers: dict[str, str]) -> None:
    """Java's HttpClient does so by default."""
    for url, model, expected in (("proxy", "duo", b'"done":true'), ("embedded", "duo", b"model 'duo' not found")):
        with connect(servers[url]) as connection:
            connection.sendall(post("/api/chat", {"model": model, **TURN}, *UPGRADE))
            answer = b""
            while expected not in answer:
                piece = connection.recv(65536)
                assert piece, answer
                answer += piece


@pytest.mark.parametrize("stream", [True, False])
@pytest.mark.parametrize("model", ["duo", "target", "draft"])
def test_a_client_of_http_1_0_gets_an_answer_without_chunks(servers: dict[str, str], stream: bool, model: str) -> None:
    body = {"model": model, **TURN, "stream": stream}
    answer = exchange(servers["proxy"], post("/api/chat", body, version="1.0"))
    headers, _, content = answer.partition(b"\r\n\r\n")
    assert b"transfer-encoding" not in headers.lower()
    assert all(json.loads(line) for line in content.splitlines())


@pytest.mark.parametrize(
    ("path", "canonical"),
    [
        ("/api/chat", "/api/chat"),
        ("/x/../api/chat", "/api/chat"),
        ("/api/./chat", "/api/chat"),
        ("//api//chat", "/api/chat"),
        ("/../../api/chat", "/api/chat"),
        ("/api/chat/.", "/api/chat/"),
        ("/api/chat/..", "/api/"),
        ("/api/chat/", "/api/chat/"),
        ("/..", "/"),
        ("/a/.hidden/..x", "/a/.hidden/..x"),
        ("http://127.0.0.1:11435/api/chat", "/api/chat"),
        ("https://tower/x/../api/chat", "/api/chat"),
        ("http://tower", "/"),
    ],
)
def test_a_path_has_one_spelling(path: str, canonical: str) -> None:
    assert canonical_path(path) == canonical


@pytest.mark.parametrize(
    "path", ["/api/%2e%2e/api/chat", "/x/..%2Fapi/chat", "/api/%2E/chat", "http://127.0.0.1/api/chat"]
)
def test_an_escaped_spelling_is_the_same_path(servers: dict[str, str], path: str) -> None:
    answer = exchange(servers["proxy"], post(path, {"model": "duo", **TURN}, CLOSE))
    assert b"x-specollama-pair: duo" in answer


def test_requests_wait_for_their_bodies_before_they_wait_in_the_queue(
    misbehaving: Callable[..., Misbehaving], through: Through
) -> None:
    hanging = misbehaving(Hanging(lambda call: call.path == "/api/chat" and not call.renders))
    client = through(hanging.url, serve="max_requests = 1\nmax_queue = 0", idle=1)
    off = {**TURN, "model": "duo", "options": {"specollama": {"off": True}}}
    with connect(str(client.base_url)) as half, connect(str(client.base_url)) as whole:
        half.sendall(head("POST", "/api/chat", "Content-Length: 1000") + b"{")
        whole.sendall(post("/api/chat", off, CLOSE))
        until(lambda: hanging.asked("/api/chat"))
        assert status(read_all(whole)) == 502


def test_the_log_tells_of_bodies_that_were_given_up(
    scripted: ScriptedOllama, up: Up, proxies: Callable[..., tuple[str, Proxy]]
) -> None:
    url, proxy = proxies(up(scripted), limits=TIGHT)
    proxy.log.stream = log = io.StringIO()
    with connect(url) as connection:
        connection.sendall(head("POST", "/x/../api/chat", "Content-Length: 1000"))
        read_all(connection)
    until(lambda: "\n" in log.getvalue())
    record = json.loads(log.getvalue())
    assert (record["status"], record["path"]) == (408, "/api/chat")
