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
