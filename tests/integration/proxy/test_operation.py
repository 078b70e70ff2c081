"""Running the proxy: who may come, how many, what is told of it, and how it is reloaded and ended."""

from __future__ import annotations

import io
import json
import os
import re
import signal
import subprocess
import sys
import threading
import tomllib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from specollama.config.schema import ServeTable
from specollama.errors import ConfigError, MissingPackage, UsageError
from specollama.server.http.listening import bind, given_token, required_token
from specollama.server.proxy import requirements
from specollama.server.proxy.serve import Proxy
from tests.support.configured import written
from tests.support.misbehaving import Hanging, Misbehaving
from tests.support.scripted_ollama import ScriptedOllama, song
from tests.support.waiting import until

Through = Callable[..., httpx.Client]
Up = Callable[[Any], str]
ASKED = {"model": "duo", "messages": [{"role": "user", "content": "Sing a secret."}], "options": {"temperature": 0}}


@pytest.mark.parametrize(("host", "status"), [("localhost:11435", 200), ("10.1.2.3", 200), ("evil.example", 403)])
def test_only_local_host_names_are_answered(
    scripted: ScriptedOllama, up: Up, through: Through, host: str, status: int
) -> None:
    assert through(up(scripted)).get("/api/version", headers={"host": host}).status_code == status


@pytest.mark.parametrize(
    ("origin", "allowed"),
    [
        ("http://localhost:3000", True),
        ("https://127.0.0.1", True),
        ("app://obsidian.md", True),
        ("vscode-webview://1a2b", True),
        ("https://chat.example", True),
        ("https://evil.example", False),
        ("http://localhost.evil.example", False),
        ("null", False),
    ],
)
def test_pages_of_other_origins_are_refused(
    scripted: ScriptedOllama, up: Up, through: Through, origin: str, allowed: bool
) -> None:
    client = through(up(scripted), environ={"OLLAMA_ORIGINS": "https://chat.example"})
    told = client.post("/api/chat", json=ASKED, headers={"origin": origin})
    asked_before = {"origin": origin, "access-control-request-method": "POST", "access-control-request-headers": "x-a"}
    preflight = client.options("/api/chat", headers=asked_before)
    assert (told.status_code, preflight.status_code) == ((200, 200) if allowed else (403, 403))
    assert (told.headers.get("access-control-allow-origin") == origin) is allowed
    assert (preflight.headers.get("access-control-allow-origin") == origin) is allowed


def test_with_a_token_only_those_that_send_it_are_answered(scripted: ScriptedOllama, up: Up, through: Through) -> None:
    client = through(up(scripted), token="sesame")
    sent = {"authorization": "Bearer sesame"}
    assert client.get("/api/tags").status_code == 401
    assert client.get("/api/tags", headers={"authorization": "Bearer Sesame"}).status_code == 401
    assert client.options("/api/tags").status_code == 401
    assert client.get("/api/tags", headers=sent).status_code == 200
    assert client.get("/healthz").status_code == 200
    assert client.get("/metrics").status_code == 401


def test_the_proxys_token_goes_no_further(up: Up, through: Through) -> None:
    seen = []

    async def server(scope: Any, receive: Any, send: Any) -> None:
        seen.append(dict(scope["headers"]).get(b"authorization"))
        await send({"type": "http.response.start", "status": 200, "headers": []})
        await send({"type": "http.response.body", "body": b"{}"})

    client = through(up(server), token="sesame")
    client.get("/api/version", headers={"authorization": "Bearer sesame"})
    assert seen == [None]


def test_another_address_needs_a_token(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("SPECOLLAMA_TOKEN", raising=False)
    assert required_token("127.0.0.1") is None
    with pytest.raises(UsageError, match=r"^0\.0\.0\.0 is open to other machines: set SPECOLLAMA_TOKEN"):
        required_token("0.0.0.0")


@pytest.mark.parametrize("token", ["two\nlines", "schlüssel", "a b", "tab\t"])
@pytest.mark.parametrize("host", ["127.0.0.1", "0.0.0.0"])
def test_a_token_that_nobody_could_send_is_refused_at_the_start(
    monkeypatch: pytest.MonkeyPatch, host: str, token: str
) -> None:
    monkeypatch.setenv("SPECOLLAMA_TOKEN", token)
    with pytest.raises(UsageError, match=r"^SPECOLLAMA_TOKEN holds .* that no HTTP header can carry"):
        required_token(host)
    with pytest.raises(UsageError):
        given_token()


def test_too_many_requests_get_ollamas_words(misbehaving: Callable[..., Misbehaving], through: Through) -> None:
    server = misbehaving(Hanging(lambda call: call.path == "/api/chat" and not call.renders))
    client = through(server.url, serve="max_requests = 1\nmax_queue = 0", idle=2)
    off = {**ASKED, "options": {"specollama": {"off": True}}}
    first = threading.Thread(target=client.post, args=("/api/chat",), kwargs={"json": off})
    first.start()
    until(lambda: server.asked("/api/chat"))
    text = "server busy, please try again.  maximum pending requests exceeded"
    told = client.post("/api/chat", json=off)
    assert (told.status_code, told.json()) == (503, {"error": text})
    openai = client.post("/v1/chat/completions", json=ASKED)
    assert (openai.status_code, openai.json()["error"]["message"]) == (503, text)
    assert client.get("/api/tags").status_code == 200, "what generates nothing isn't bound"
    first.join()


def test_requests_wait_their_turn_and_all_are_answered(
    scripted: ScriptedOllama, up: Up, through: Through, song_text: str
) -> None:
    client = through(up(scripted), serve="max_requests = 1")
    texts: list[str] = []

    def sing() -> None:
        texts.append(client.post("/api/chat", json={**ASKED, "stream": False}).json()["message"]["content"])

    threads = [threading.Thread(target=sing) for _ in range(5)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert texts == [song_text] * 5


def test_a_client_that_leaves_while_it_waits_leaves_its_place_to_the_next(
    misbehaving: Callable[..., Misbehaving], through: Through
) -> None:
    server = misbehaving(Hanging(lambda call: call.path == "/api/chat" and not call.renders))
    client = through(server.url, serve="max_requests = 1\nmax_queue = 1", idle=3)
    off = {**ASKED, "options": {"specollama": {"off": True}}}
    first = threading.Thread(target=client.post, args=("/api/chat",), kwargs={"json": off})
    first.start()
    until(lambda: server.asked("/api/chat"))
    for _ in range(3):  # more than can wait at once
        with pytest.raises(httpx.ReadTimeout):
            client.post("/api/chat", json=off, timeout=0.05)
        until(lambda: client.get("/readyz").json()["running"] == 1)
    first.join()
    assert len(server.asked("/api/chat")) == 1, "nothing was asked for those that left"


def test_replies_at_once_share_the_lanes_or_run_plain(
    scripted: ScriptedOllama, up: Up, through: Through, song_text: str
) -> None:
    client = through(up(scripted), pair="lanes = 4")
    told: list[dict[str, Any]] = []

    def sing() -> None:
        told.append(client.post("/api/chat", json={**ASKED, "stream": False}).json())

    threads = [threading.Thread(target=sing) for _ in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert [reply["message"]["content"] for reply in told] == [song_text] * 6
    reasons = {reply["specollama"]["reason"] for reply in told}
    assert reasons == {"", "the target's lanes are taken by other replies"}


@pytest.mark.parametrize(
    ("limit", "more", "words"),
    [
        ("max_prompt = 10", {}, "the prompt has 14 characters: this server takes 10"),
        (
            "max_num_predict = 5",
            {"options": {"num_predict": 6}},
            "num_predict is 6: this server gives 5 tokens at most",
        ),
    ],
)
@pytest.mark.parametrize("model", ["duo", "draft"])
def test_what_goes_beyond_the_limits_is_refused(
    scripted: ScriptedOllama, up: Up, through: Through, limit: str, more: dict[str, Any], words: str, model: str
) -> None:
    told = through(up(scripted), serve=limit).post("/api/chat", json={**ASKED, "model": model, **more})
    assert (told.status_code, told.json()) == (400, {"error": words})


@pytest.mark.parametrize("model", ["duo", "target", "draft"])
def test_a_reply_without_a_limit_gets_the_servers(
    scripted: ScriptedOllama, up: Up, through: Through, model: str
) -> None:
    client = through(up(scripted), serve="max_num_predict = 5")
    reply = client.post("/api/chat", json={**ASKED, "model": model, "stream": False}).json()
    assert (reply["eval_count"], reply["done_reason"]) == (5, "length")


def test_a_shorter_limit_of_the_pair_stays_in_effect_under_the_servers(
    scripted: ScriptedOllama, up: Up, through: Through
) -> None:
    client = through(up(scripted), serve="max_num_predict = 5", pair="options = { num_predict = 3 }")
    reply = client.post("/api/chat", json={**ASKED, "model": "duo", "stream": False}).json()
    assert (reply["eval_count"], reply["done_reason"]) == (3, "length")


def test_too_large_a_body_is_refused(scripted: ScriptedOllama, up: Up, through: Through) -> None:
    client = through(up(scripted), serve="max_body = 300")
    body = json.dumps({**ASKED, "padding": "x" * 300}).encode()
    told = [client.post("/api/chat", content=content) for content in (body, iter([body]))]
    assert [each.status_code for each in told] == [413, 413]
    assert told[0].json() == {"error": "request body too large: the limit is 300 bytes"}


Proxies = Callable[..., tuple[str, Proxy]]


def logged(proxy: Proxy, url: str, *calls: Callable[[httpx.Client], Any]) -> str:
    """The log of some calls: a line each, which is written once its answer has been sent."""
    proxy.log.stream = log = io.StringIO()
    with httpx.Client(base_url=url, timeout=60, trust_env=False) as client:
        for number, call in enumerate(calls, start=1):
            call(client)
            until(lambda number=number: log.getvalue().count("\n") == number)  # type: ignore[misc]
    return log.getvalue()


def test_the_log_has_a_line_a_request_and_none_of_the_clients_text(
    scripted: ScriptedOllama, up: Up, proxies: Proxies
) -> None:
    url, proxy = proxies(up(scripted))
    text = logged(
        proxy,
        url,
        lambda client: client.post("/api/chat", json=ASKED, headers={"x-request-id": "r-1"}),
        lambda client: client.get("/api/version"),
    )
    first, second = (json.loads(line) for line in text.splitlines())
    assert "secret" not in text
    assert (first["id"], first["path"], first["status"]) == ("r-1", "/api/chat", 200)
    assert (first["model"], first["pair"], first["route"], first["tokens"]) == ("duo", "duo", "lanes", 34)
    assert first["accepted"] > 0
    assert (second["path"], second["route"]) == ("/api/version", "passed")


def test_the_log_has_the_clients_text_where_that_is_asked_for(
    scripted: ScriptedOllama, up: Up, proxies: Proxies
) -> None:
    url, proxy = proxies(up(scripted), serve="log_prompts = true")
    text = logged(proxy, url, lambda client: client.post("/api/chat", json=ASKED))
    assert json.loads(text)["prompt"] == ASKED["messages"]


def test_metrics_count_what_was_drafted_and_accepted(scripted: ScriptedOllama, up: Up, through: Through) -> None:
    client = through(up(scripted))
    stats = client.post("/api/chat", json={**ASKED, "stream": False}).json()["specollama"]
    client.post("/api/chat", json={**ASKED, "format": "json"})
    found = dict(re.findall(r"^(\S+) (\S+)$", client.get("/metrics").text, re.MULTILINE))
    pair = '{pair="duo"}'
    assert float(found[f"spec_decode_num_drafts_total{pair}"]) == stats["rounds"]
    assert float(found[f"spec_decode_num_draft_tokens_total{pair}"]) == stats["drafted"]
    assert float(found[f"spec_decode_num_accepted_tokens_total{pair}"]) == stats["accepted"]
    first = 'spec_decode_num_accepted_tokens_per_pos_total{pair="duo",position="0"}'
    assert float(found[first]) == stats["accepted_at"][0]
    for route in ("lanes", "plain"):
        for name in ("specollama_request_duration_seconds", "specollama_time_to_first_token_seconds"):
            assert float(found[f'{name}_count{{route="{route}"}}']) == 1


def test_readiness_tells_of_servers_that_do_not_answer(scripted: ScriptedOllama, up: Up, through: Through) -> None:
    ready = through(up(scripted)).get("/readyz")
    assert (ready.status_code, ready.json()["endpoints"][0]["version"]) == (200, "0.33.0")
    lost = through("http://127.0.0.1:9").get("/readyz")
    assert (lost.status_code, lost.json()["status"]) == (503, "not ready")
    assert lost.json()["endpoints"][0]["error"].startswith("http://127.0.0.1:9")


def test_readiness_tells_of_stuck_requests(misbehaving: Callable[..., Misbehaving], through: Through) -> None:
    server = misbehaving(Hanging(lambda call: call.path == "/api/chat" and not call.renders))
    client = through(server.url, serve="stuck_after = 0.01", idle=2)
    off = {**ASKED, "options": {"specollama": {"off": True}}}
    stuck = threading.Thread(target=client.post, args=("/api/chat",), kwargs={"json": off})
    stuck.start()
    until(lambda: server.asked("/api/chat"))
    until(lambda: client.get("/readyz").status_code == 503)
    assert [each["path"] for each in client.get("/readyz").json()["stuck"]] == ["/api/chat"]
    assert client.get("/healthz").status_code == 200
    stuck.join()
    assert client.get("/readyz").status_code == 200


def test_an_unknown_endpoint_of_serve_is_told(tmp_path: Path) -> None:
    from specollama.config.loading import load_config

    file = written(tmp_path, "http://tower:11434", serve="")
    file.write_text(file.read_text().replace('endpoint = "server"\n', 'endpoint = "sever"\n', 1))
    with pytest.raises(ConfigError, match=r"serve\.endpoint .*no endpoint sever is defined, did you mean server\?"):
        load_config(file)


def test_the_example_of_a_configuration_shows_the_defaults() -> None:
    example = (Path(__file__).parents[3] / "configs" / "serve.toml").read_text()
    shown = re.search(r"^\[serve\]\n(.*?)^\[", example, re.MULTILINE | re.DOTALL)
    assert shown
    settings = tomllib.loads("\n".join(re.findall(r"^# (\w+ = .*)$", shown[1], re.MULTILINE)))
    for unlimited in ("max_prompt", "max_num_predict"):
        assert settings.pop(unlimited)
        settings[unlimited] = None
    assert {**settings, "endpoint": None} == ServeTable().model_dump()


def test_without_its_packages_one_line_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    requirements.require_packages()
    monkeypatch.setattr(requirements, "NEEDED", ("json", "no_such_package"))
    with pytest.raises(MissingPackage, match=r"^`serve` needs no_such_package: run pip install 'specollama\[proxy\]'$"):
        requirements.require_packages()


@pytest.fixture
def started(tmp_path: Path) -> Iterator[Callable[..., tuple[subprocess.Popen[str], str]]]:
    """`specollama serve` as a process: it, and its URL."""
    running: list[subprocess.Popen[str]] = []

    def start(config: Path, *flags: str) -> tuple[subprocess.Popen[str], str]:
        command = [sys.executable, "-m", "specollama", "serve", "--config", str(config), "--port", "0", *flags]
        process = subprocess.Popen(command, text=True, stderr=subprocess.PIPE, env={**os.environ, "OLLAMA_HOST": ""})
        running.append(process)
        assert process.stderr
        ready = process.stderr.readline()
        found = re.search(r"http://[\d.:]+", ready)
        assert found, ready + process.stderr.read()
        process.stderr.readline()  # the pairs
        return process, found[0]

    yield start
    for process in running:
        process.kill()
        process.wait()
        assert process.stderr
        process.stderr.close()


def event(process: subprocess.Popen[str], name: str) -> dict[str, Any]:
    """The next line of the log that tells of such an event."""
    assert process.stderr
    for line in process.stderr:
        if name in json.loads(line).get("event", ""):
            return dict(json.loads(line))
    raise AssertionError("the process ended")


def test_a_reload_takes_a_sound_file_and_refuses_a_broken_one(
    scripted: ScriptedOllama, up: Up, tmp_path: Path, started: Any
) -> None:
    config = written(tmp_path, up(scripted))
    sound = config.read_text()
    process, url = started(config)

    def names() -> list[str]:
        return [model["name"] for model in httpx.get(f"{url}/api/tags", trust_env=False).json()["models"]]

    assert names()[0] == "duo"
    config.write_text(sound.replace("route =", "rout ="))
    process.send_signal(signal.SIGHUP)
    refused = event(process, "refused")
    assert "unknown key, did you mean route?" in refused["error"]
    assert names()[0] == "duo"
    config.write_text(sound.replace("pairs.duo", "pairs.trio"))
    process.send_signal(signal.SIGHUP)
    assert event(process, "reloaded")["pairs"] == ["trio"]
    assert names()[0] == "trio"


def test_a_stream_that_runs_is_finished_at_shutdown(
    scripted: ScriptedOllama, up: Up, tmp_path: Path, started: Any, song_text: str
) -> None:
    process, url = started(written(tmp_path, up(scripted)))
    with httpx.Client(trust_env=False) as client, client.stream("POST", f"{url}/api/chat", json=ASKED) as response:
        lines = response.iter_lines()
        first = next(lines)
        process.send_signal(signal.SIGTERM)
        told = [json.loads(line) for line in (first, *lines)]
    assert "".join(line["message"]["content"] for line in told) == song_text
    assert told[-1]["done"]
    assert process.wait(30) in (0, -signal.SIGTERM)


def test_a_port_that_is_taken_is_told_in_one_line(scripted: ScriptedOllama, up: Up, tmp_path: Path) -> None:
    with bind("127.0.0.1", 0) as taken:
        port = str(taken.getsockname()[1])
        config = str(written(tmp_path, up(scripted)))
        command = [sys.executable, "-m", "specollama", "serve", "--config", config, "--port", port]
        ran = subprocess.run(command, capture_output=True, text=True, timeout=60)
    assert (ran.returncode, ran.stdout) == (1, "")
    assert ran.stderr == f"error: can't listen on 127.0.0.1 port {port}: Address already in use\n"


def test_what_is_wrong_with_servers_and_models_is_told_at_the_start(up: Up, tmp_path: Path, started: Any) -> None:
    models = {"target": song().models["target"]}
    process, _ = started(written(tmp_path, up(song(models=models))))
    assert "has no model 'draft' (there: target:latest)" in event(process, "pair duo can't be speculated")["error"]
    lost, _ = started(written(tmp_path, "http://127.0.0.1:9"))
    assert event(lost, "what isn't a pair's can't be passed on")["error"].startswith("http://127.0.0.1:9 (set by ")


def test_a_server_that_would_pass_on_to_itself_is_told_in_one_line(tmp_path: Path) -> None:
    with bind("127.0.0.1", 0) as found:
        port = str(found.getsockname()[1])
    config = str(written(tmp_path, f"http://localhost:{port}"))
    command = [sys.executable, "-m", "specollama", "serve", "--config", config, "--port", port]
    ran = subprocess.run(command, capture_output=True, text=True, timeout=60)
    assert ran.returncode == 2
    assert ran.stderr.startswith(f"error: http://localhost:{port} (set by ")
    assert ran.stderr.endswith("is this server itself: name the server behind it, or listen on another --port\n")


def test_a_reply_that_began_before_a_reload_ends_with_the_old_configuration(
    scripted: ScriptedOllama, up: Up, proxies: Callable[..., tuple[str, Proxy]], song_text: str
) -> None:
    import asyncio

    url, proxy = proxies(up(scripted))
    old = proxy.current
    with httpx.Client(trust_env=False) as client, client.stream("POST", f"{url}/api/chat", json=ASKED) as response:
        lines = response.iter_lines()
        first = next(lines)
        assert proxy.config.file
        proxy.config.file.write_text(proxy.config.file.read_text().replace("pairs.duo", "pairs.trio"))
        assert proxy.loop
        asyncio.run_coroutine_threadsafe(proxy.reload(), proxy.loop).result()
        told = [json.loads(line) for line in (first, *lines)]
    assert proxy.current is not old
    assert "".join(line["message"]["content"] for line in told) == song_text
    assert told[-1]["specollama"]["pair"] == "duo"
