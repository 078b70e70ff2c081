"""Limits of the configuration hold for what is forwarded, whatever the path and however it is spelled."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import httpx
import pytest

from specollama.server.proxy.serve import serve_in_thread
from tests.support.configured import written
from tests.support.scripted_ollama import Call, ScriptedOllama, song
from tests.support.serving import serving

LONG = "x" * 30
USER = [{"role": "user", "content": "Hi"}]


class Upstream(ScriptedOllama):
    """Answers other paths with what it was asked."""

    def _answer(self, call: Call) -> tuple[int, Any]:
        if call.path in ("/api/generate", "/api/chat", "/api/show", "/api/tags", "/api/version", "/api/ps"):
            return super()._answer(call)
        return 200, dict(call.body)


@pytest.fixture(scope="module")
def upstream() -> Upstream:
    return Upstream(song().models)


@pytest.fixture(scope="module")
def client(upstream: Upstream, tmp_path_factory: pytest.TempPathFactory) -> Iterator[httpx.Client]:
    """Of a proxy whose prompts have 20 characters at most, and whose replies 5 tokens."""
    with serving(upstream) as url:
        limits = "max_prompt = 20\nmax_num_predict = 5"
        file = written(tmp_path_factory.mktemp("bounded"), url, serve=limits)
        with serve_in_thread(file, {}) as (base, _), httpx.Client(base_url=base, timeout=60, trust_env=False) as client:
            yield client


@pytest.mark.parametrize("model", ["duo", "draft", "elsewhere"])
@pytest.mark.parametrize(
    ("path", "body"),
    [
        ("/api/generate", {"prompt": LONG}),
        ("/api/generate", {"PROMPT": LONG}),
        ("/api/generate", {"prompt": "x", "System": LONG}),
        ("/x/../api/generate", {"prompt": LONG}),
        ("/api/./generate", {"prompt": LONG}),
        ("/api/chat", {"messages": [{"role": "user", "Content": LONG}]}),
        ("/api/chat", {"messages": [{"role": "user", "content": "x", "thinking": LONG}]}),
        ("/api/embed", {"input": [LONG[:15], LONG[:15]]}),
        ("/api/embeddings", {"prompt": LONG}),
        ("/v1/embeddings", {"input": LONG}),
        ("/v1/completions", {"prompt": LONG}),
        ("/v1/completions", {"prompt": ["x", LONG]}),
        ("/v1/chat/completions", {"messages": [{"role": "user", "content": LONG}]}),
        ("/v1/chat/completions", {"messages": [{"role": "user", "content": [{"type": "text", "text": LONG}]}]}),
        ("/v1/messages", {"system": LONG, "messages": USER, "max_tokens": 3}),
        ("/v1/responses", {"input": [{"role": "user", "content": [{"type": "input_text", "text": LONG}]}]}),
        ("/v1/responses", {"input": "x", "instructions": LONG}),
        ("/api/generate", {"prompt": "x", "options": {"num_predict": 6}}),
        ("/api/generate", {"prompt": "x", "OPTIONS": {"num_predict": 6}}),
        ("/v1/completions", {"prompt": "x", "max_tokens": 6}),
        ("/v1/chat/completions", {"messages": USER, "Max_Tokens": 6}),
        ("/v1/chat/completions", {"messages": USER, "max_completion_tokens": 6}),
        ("/v1/messages", {"messages": USER, "max_tokens": 6}),
        ("/v1/responses", {"input": "x", "max_output_tokens": 1e9}),
    ],
)
@pytest.mark.parametrize("ending", [b"", b" and more"])
def test_what_goes_beyond_a_limit_is_refused_on_every_path(
    client: httpx.Client, path: str, body: dict[str, Any], model: str, ending: bytes
) -> None:
    told = client.post(path, content=json.dumps({"model": model, **body}).encode() + ending)
    assert told.status_code == 400
    assert "this server" in told.text


@pytest.mark.parametrize(
    ("path", "body", "bounded"),
    [
        ("/v1/messages", {"messages": USER}, {"max_tokens": 5}),
        ("/v1/responses", {"input": "x"}, {"max_output_tokens": 5}),
        ("/v1/responses", {"input": "x", "max_output_tokens": -1}, {"max_output_tokens": 5}),
        ("/v1/messages", {"messages": USER, "max_tokens": 2}, {"max_tokens": 2}),
        ("/v1/completions", {"prompt": ["x", "y"], "max_tokens": None}, {"max_tokens": 5}),
        ("/v1/embeddings", {"input": "x"}, {}),
    ],
)
@pytest.mark.parametrize(("model", "served"), [("duo", "target"), ("elsewhere", "elsewhere")])
def test_a_reply_without_a_limit_gets_the_servers_on_every_path(
    client: httpx.Client, path: str, body: dict[str, Any], bounded: dict[str, Any], model: str, served: str
) -> None:
    """And a pair's name is answered as for its target."""
    told = client.post(path, json={"model": model, **body}).json()
    limits = {name: value for name, value in told.items() if name.endswith("_tokens")}
    assert (told["model"], limits) == (served, bounded)


@pytest.mark.parametrize(
    "raw",
    [
        b'{"model":"DUO","messages":[{"role":"user","content":"Hi \\ud83c"}],"stream":false}',
        b'{"model":"library/duo:latest","messages":[{"role":"user","content":"caf\xe9"}],"stream":false} x',
        b'{"Model":"https://registry.ollama.ai/library/duo","Messages":[{"Role":"user","content":"a"}],"Stream":false}',
    ],
)
def test_a_body_that_ollama_takes_is_speculated(client: httpx.Client, raw: bytes) -> None:
    told = client.post("/api/chat", content=raw)
    assert (told.status_code, told.headers["x-specollama-pair"]) == (200, "duo")


@pytest.mark.parametrize(
    ("method", "path", "body"),
    [
        ("POST", "/api/copy", {"source": "duo", "destination": "other"}),
        ("POST", "/api/copy", {"source": "target", "destination": "DUO:latest"}),
        ("DELETE", "/api/delete", {"model": "duo"}),
        ("DELETE", "/api/delete", {"name": "duo"}),
        ("POST", "/api/push", {"model": "duo"}),
        ("POST", "/api/create", {"model": "new", "from": "duo"}),
    ],
)
def test_what_only_a_model_can_be_asked_says_that_a_pair_is_one(
    client: httpx.Client, method: str, path: str, body: dict[str, Any]
) -> None:
    told = client.request(method, path, json=body)
    assert told.status_code == 400
    assert told.json()["error"] == "duo is a pair in this proxy's configuration, not a model; its target is target"


def test_other_models_are_copied_and_removed_as_asked(client: httpx.Client) -> None:
    body = {"source": "target", "destination": "other"}
    assert client.post("/api/copy", json=body).json() == body


@pytest.mark.parametrize("path", ["/api/chat", "/api/generate", "/v1/chat/completions", "/api/show"])
def test_a_number_beyond_the_floats_is_a_clients_mistake(client: httpx.Client, path: str) -> None:
    raw = b'{"model":"duo","messages":[{"role":"user","content":"a"}],"prompt":"a","options":{"temperature":1e999}}'
    told = client.post(path, content=raw)
    assert told.status_code == 400
    assert "out of range" in told.text
