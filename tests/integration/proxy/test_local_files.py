"""A pair whose target is a file that no server has, through the proxy."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from specollama.config.loading import load_config
from specollama.server.embedded.default_models import default_models
from specollama.server.proxy.serve import serve_in_thread
from tests.support.scripted_ollama import ScriptedOllama

COLOURS = [{"role": "user", "content": "Name three colours."}]
GREEDY = {"temperature": 0, "num_predict": 16, "num_ctx": 512}


@pytest.fixture
def client(scripted: ScriptedOllama, up: Callable[[Any], str], tmp_path: Path) -> Iterator[httpx.Client]:
    file = tmp_path / "specollama.toml"
    models = default_models()
    file.write_text(
        f"[endpoints.server]\nurl = {json.dumps(up(scripted))}\n[serve]\nendpoint = 'server'\n"
        f"[pairs.here]\ntarget = {{ path = {json.dumps(str(models['target']))} }}\ndraft = 'lookup'\n"
    )
    with (
        serve_in_thread(load_config(file), {}) as (url, _),
        httpx.Client(base_url=url, timeout=120, trust_env=False) as client,
    ):
        yield client


def test_a_file_is_asked_shown_and_listed_as_any_model(client: httpx.Client, http: httpx.Client) -> None:
    plain = http.post("/api/chat", json={"model": "target", "messages": COLOURS, "options": GREEDY, "stream": False})
    told = client.post("/api/chat", json={"model": "here", "messages": COLOURS, "options": GREEDY, "stream": False})
    assert told.json()["message"] == plain.json()["message"]
    assert told.headers["x-specollama-route"] == "local"
    shown = client.post("/api/show", json={"model": "here"}).json()
    assert shown["model_info"]["general.architecture"] == "llama"
    assert shown["specollama"]["pair"] == "here"
    assert client.get("/api/tags").json()["models"][0]["name"] == "here"
    loaded = client.post("/api/generate", json={"model": "here"}).json()
    assert (loaded["model"], loaded["done_reason"]) == ("here", "load")
    refused = client.post("/api/chat", json={"model": "here", "messages": COLOURS, "format": "json"})
    assert refused.status_code == 400
    assert "opened" in refused.json()["error"]


def in_process(client: httpx.Client) -> list[dict[str, Any]]:
    return [entry for entry in client.get("/api/ps").json()["models"] if entry["name"] == "here"]


def test_models_in_process_are_listed_while_they_are_in_memory_and_unloaded_when_asked(
    client: httpx.Client, http: httpx.Client
) -> None:
    asked = {"messages": COLOURS, "options": {**GREEDY, "num_predict": 2}, "stream": False}
    plain = http.post("/api/chat", json={"model": "target", **asked}).json()["message"]
    assert in_process(client) == []
    assert client.post("/api/chat", json={"model": "here", **asked}).json()["message"] == plain
    (entry,) = in_process(client)
    assert entry["context_length"] == 512
    assert entry["size"] >= default_models()["target"].stat().st_size
    stopped = client.post("/api/chat", json={"model": "here", "keep_alive": 0}).json()
    assert (stopped["model"], stopped["done"], stopped["done_reason"]) == ("here", True, "unload")
    assert in_process(client) == []
