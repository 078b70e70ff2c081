"""What clients get when the server behind the proxy fails, and when they themselves do."""

from __future__ import annotations

import io
import json
import socket
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from typing import Any

import httpx
import pytest

from specollama.server.proxy.access_log import AccessLog, JsonLog
from specollama.server.proxy.metrics import Metrics
from specollama.server.proxy.serve import Proxy
from tests.support.misbehaving import BUSY, Busy, Cut, Hanging, Misbehaving
from tests.support.scripted_ollama import Call, ScriptedOllama
from tests.support.serving import read_body, whole
from tests.support.waiting import until

Through = Callable[..., httpx.Client]
Up = Callable[[Any], str]
ASKED = {"model": "duo", "messages": [{"role": "user", "content": "Sing."}], "options": {"temperature": 0}}
PLAIN = {**ASKED, "options": {"temperature": 0, "specollama": {"off": True}}}
OTHER = {**ASKED, "model": "draft"}
OPENAI = {"model": "duo", "messages": ASKED["messages"], "temperature": 0, "stream": True}


def answers(call: Call) -> bool:
    return call.path == "/api/chat" and not call.renders


def lines(content: bytes) -> list[dict[str, Any]]:
    return [json.loads(line) for line in content.split(b"\n") if line]


@pytest.mark.parametrize("sent", [0, 1, 60, 500, 2000, -200, -1])
@pytest.mark.parametrize("then", ["break", "end"])
def test_a_plain_answer_cut_anywhere_ends_with_one_error_line(
    misbehaving: Callable[..., Misbehaving], through: Through, song_text: str, sent: int, then: Any
) -> None:
    server = misbehaving(Cut(answers, sent, then))
    response = through(server.url).post("/api/chat", json=PLAIN)
    *before, last = lines(response.content)
    if sent == -1 and then == "end":
        assert last["done"], "only the line's own end is missing"
        return
    assert list(last) == ["error"]
    assert song_text.startswith("".join(chunk["message"]["content"] for chunk in before))
    assert response.status_code == (200 if before else 502)


@pytest.mark.parametrize("sent", [60, 500])
def test_a_speculated_answer_whose_target_dies_is_a_beginning_of_the_text_and_one_error(
    misbehaving: Callable[..., Misbehaving], through: Through, song_text: str, sent: int
) -> None:
    def later(call: Call) -> bool:
        return call.path == "/api/generate" and call.model == "target" and call.generates and call.number > 25

    response = through(misbehaving(Cut(later, sent, "break")).url).post("/api/chat", json=ASKED)
    *before, last = lines(response.content)
    text = "".join(chunk["message"]["content"] for chunk in before)
    assert response.status_code == 200
    assert text
    assert song_text.startswith(text)
    assert list(last) == ["error"]


def test_openais_clients_get_an_error_event_in_mid_stream(
    misbehaving: Callable[..., Misbehaving], through: Through
) -> None:
    server = misbehaving(Cut(answers, 500, "break"))
    asked = {**OPENAI, "response_format": {"type": "json_object"}}
    events = through(server.url).post("/v1/chat/completions", json=asked).text.split("\n\n")
    last = json.loads(events[-2].removeprefix("data: "))
    assert last["error"]["type"] == "api_error"
    assert "data: [DONE]" not in events


def test_a_passed_on_answer_that_breaks_off_breaks_off_for_the_client(
    misbehaving: Callable[..., Misbehaving], through: Through
) -> None:
    client = through(misbehaving(Cut(answers, 300, "break")).url)
    with pytest.raises(httpx.RemoteProtocolError):
        client.post("/api/chat", json=OTHER)
    assert client.get("/api/version").status_code == 200


@pytest.mark.parametrize(("asked", "status"), [(PLAIN, 502), (OTHER, 504)])
def test_a_server_that_hangs_is_given_up(
    misbehaving: Callable[..., Misbehaving], through: Through, asked: dict[str, Any], status: int
) -> None:
    response = through(misbehaving(Hanging(answers)).url, idle=0.3).post("/api/chat", json=asked)
    assert response.status_code == status
    assert "gave no byte in time" in response.json()["error"]


@pytest.mark.parametrize("asked", [PLAIN, OTHER])
def test_a_busy_servers_own_words_reach_the_client(
    misbehaving: Callable[..., Misbehaving], through: Through, asked: dict[str, Any]
) -> None:
    response = through(misbehaving(Busy(answers)).url).post("/api/chat", json=asked)
    assert response.status_code == 503
    assert response.json() == json.loads(b"".join(BUSY.chunks))


def test_an_error_that_is_no_json_is_told_in_one_line(
    misbehaving: Callable[..., Misbehaving], through: Through
) -> None:
    page = whole("<html>Bad gateway</html>", 502)
    response = through(misbehaving(Busy(answers, answer=page)).url).post("/api/chat", json=PLAIN)
    assert response.status_code == 502
    assert response.json()["error"].endswith("HTTP 502 Bad Gateway")


def test_a_refused_row_is_made_up_for_and_the_client_sees_nothing_of_it(
    misbehaving: Callable[..., Misbehaving], through: Through, song_text: str
) -> None:
    """C30, through the proxy."""
    server = misbehaving(Busy(lambda call: call.is_row and call.number % 7 == 3, times=1))
    response = through(server.url).post("/api/chat", json={**ASKED, "stream": False})
    assert response.json()["message"]["content"] == song_text


def test_a_client_that_leaves_while_it_sends_is_no_fault_of_the_proxys(
    scripted: ScriptedOllama, up: Up, proxies: Callable[..., tuple[str, Proxy]]
) -> None:
    url, proxy = proxies(up(scripted))
    proxy.log.stream = log = io.StringIO()
    address = httpx.URL(url)
    with socket.create_connection((address.host, address.port)) as connection:
        head = f"POST /api/chat HTTP/1.1\r\nHost: {address.host}\r\nContent-Length: 100\r\n\r\n"
        connection.sendall(head.encode() + b'{"model"')
    until(lambda: "\n" in log.getvalue())
    record = json.loads(log.getvalue())
    assert (record["status"], record["aborted"]) == (499, True)
    assert "trace" not in record


@pytest.mark.parametrize("started", [False, True])
async def test_a_fault_of_our_own_is_told_in_the_log_and_by_its_id(started: bool) -> None:
    async def faulty(scope: Any, receive: Any, send: Any) -> None:
        if started:
            await send({"type": "http.response.start", "status": 200, "headers": []})
        raise LookupError("nobody thought of this")

    metrics, lines = Metrics(), io.StringIO()
    app = AccessLog(faulty, metrics=metrics, log=JsonLog(metrics, lines), records={}, quiet=())
    sent: list[Any] = []

    async def send(message: Any) -> None:
        sent.append(message)

    await app({"type": "http", "method": "GET", "path": "/api/x", "headers": []}, None, send)  # type: ignore[arg-type]
    record = json.loads(lines.getvalue())
    assert record["error"] == "LookupError: nobody thought of this"
    assert "faulty" in record["trace"]
    if started:
        assert [message["type"] for message in sent] == ["http.response.start"], "the connection is dropped"
    else:
        assert sent[0]["status"] == 500
        assert record["id"] in json.loads(sent[1]["body"])["error"]


class Torrent:
    """Answers with far more than any buffer holds. `sent`: bytes so far."""

    total, piece = 200_000_000, b"x" * 100_000

    def __init__(self) -> None:
        self.sent = 0

    async def __call__(self, scope: Mapping[str, Any], receive: Any, send: Any) -> None:
        await read_body(receive)
        await send({"type": "http.response.start", "status": 200, "headers": []})
        while self.sent < self.total:
            await send({"type": "http.response.body", "body": self.piece, "more_body": True})
            self.sent += len(self.piece)
        await send({"type": "http.response.body", "body": b""})


def test_a_client_that_does_not_read_slows_the_server_down(up: Up, through: Through) -> None:
    torrent = Torrent()
    with through(up(torrent)).stream("GET", "/api/blobs/much") as response:
        until(lambda: torrent.sent)
        before = -1
        while before != torrent.sent:  # until it has come to a stop
            before = torrent.sent
            time.sleep(0.3)
        assert response.status_code == 200
        assert 0 < torrent.sent < torrent.total / 4
        read = sum(len(chunk) for chunk in response.iter_raw())
    assert read == torrent.total


def test_a_full_disk_loses_lines_of_the_log_and_nothing_else(
    scripted: ScriptedOllama, up: Up, proxies: Callable[..., tuple[str, Proxy]], song_text: str
) -> None:
    url, proxy = proxies(up(scripted))
    full = open("/dev/full", "w", buffering=1)  # noqa: SIM115 - closing it fails too
    proxy.log.stream = full
    reply = httpx.post(f"{url}/api/chat", json={**ASKED, "stream": False}, trust_env=False).json()
    assert reply["message"]["content"] == song_text
    until(lambda: "specollama_log_lines_lost_total 1.0" in httpx.get(f"{url}/metrics", trust_env=False).text)
    proxy.log.stream = None
    with suppress(OSError):
        full.close()


def test_a_log_that_can_not_be_written_counts_what_it_lost() -> None:
    metrics = Metrics()
    with open("/dev/null") as unwritable:
        JsonLog(metrics, unwritable).write({"event": "lost"})
    assert b"specollama_log_lines_lost_total 1.0" in metrics.exposition()


def test_a_client_that_leaves_before_the_answer_ends_the_work_for_it(
    misbehaving: Callable[..., Misbehaving], proxies: Callable[..., tuple[str, Proxy]]
) -> None:
    server = misbehaving(Hanging(answers))
    url, _ = proxies(server.url)
    address = httpx.URL(url)
    body = json.dumps(PLAIN).encode()
    with socket.create_connection((address.host, address.port)) as connection:
        head = f"POST /api/chat HTTP/1.1\r\nHost: {address.host}\r\nContent-Length: {len(body)}\r\n\r\n".encode()
        connection.sendall(head + body)
        until(lambda: any(map(answers, server.calls)))
    with httpx.Client(base_url=url, trust_env=False) as client:
        until(lambda: not client.get("/readyz").json()["running"])
        assert 'aborted_total{route="none"} 1.0' in client.get("/metrics").text
