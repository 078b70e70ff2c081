"""Pairs on engines as they are configured, listed, and served to Ollama's clients."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import httpx
import pytest

from specollama.config.loading import Config, load_config
from specollama.config.settings import ModelRef
from specollama.errors import ConfigError
from specollama.server.proxy.serve import serve_in_thread as proxied
from specollama.spec_decode.types import Route, ServerApi
from specollama.tools.doctor.pair_status import pair_status
from tests.support.fake_engines import NAME, FakeLlamaServer, FakeSGLang, FakeVLLM
from tests.support.scoring_replies import settings
from tests.support.serving import serving
from tests.support.toy import STORY

TWO = """
[endpoints.one]
url = "http://one:8000"
[endpoints.two]
url = "http://two:8000"
[pairs.p]
draft = "lookup"
target = """


def config(tmp_path: Path, target: str, more: str = "") -> Config:
    file = tmp_path / "specollama.toml"
    file.write_text(TWO + target + "\n" + more)
    return load_config(file)


def test_a_target_names_its_engine_and_one_endpoint_or_several(tmp_path: Path) -> None:
    pair = config(tmp_path, '{ model = "org/m", endpoint = ["one", "two"], api = "vllm" }').pair("p", {})
    assert isinstance(pair.target, ModelRef)
    assert (pair.target.model, pair.target.api, pair.target.is_scoring_engine) == ("org/m", ServerApi.VLLM, True)
    assert [endpoint.url for endpoint in pair.target.endpoints] == ["http://one:8000", "http://two:8000"]
    pair = config(tmp_path, '{ model = "m", endpoint = "one", api = "ollama" }').pair("p", {})
    assert isinstance(pair.target, ModelRef)
    assert not pair.target.is_scoring_engine


@pytest.mark.parametrize(
    ("target", "more", "says"),
    [
        ('{ model = "m", endpoint = "one", api = "vlm" }', "", "must be one of ollama, vllm, sglang, tensorrt-llm"),
        ('{ model = "m", endpoint = ["one", "to"], api = "vllm" }', "", "no endpoint to is defined, did you mean two?"),
        ('{ model = "m", endpoint = ["one", "two"] }', "", "several endpoints are for engines that score: give api"),
        ('{ model = "m", endpoint = [], api = "vllm" }', "", "must be the name of an endpoint, or a list"),
        ('{ model = "m", api = "vllm" }', "", "an api belongs to an endpoint"),
        ('{ path = "m.gguf", api = "vllm" }', "", "a file has no model's name, no endpoint and no api"),
        (
            '{ model = "m", endpoint = "one", api = "sglang" }',
            'route = "lanes"',
            "a target of sglang is verified there: auto, scoring or plain",
        ),
        (
            '{ model = "m", endpoint = "one", api = "ollama" }',
            'route = "scoring"',
            "Ollama's API can't score given tokens",
        ),
        ('{ path = "m.gguf" }', 'route = "scoring"', "a file is opened in process: auto, local or plain"),
    ],
)
def test_what_cannot_be_meant_is_told_with_what_is_allowed(tmp_path: Path, target: str, more: str, says: str) -> None:
    with pytest.raises(ConfigError, match=says):
        config(tmp_path, target, more)


@pytest.mark.parametrize(
    ("draft", "says"),
    [
        ('{ model = "d", endpoint = "one", api = "vllm" }', "a draft model is Ollama's, or a file, or lookup"),
        ('{ model = "d", endpoint = ["one", "two"] }', "a draft model has one endpoint"),
    ],
)
def test_a_draft_model_is_not_on_such_an_engine(tmp_path: Path, draft: str, says: str) -> None:
    text = TWO.replace('"lookup"', draft) + '{ model = "m", endpoint = "one", api = "vllm" }'
    file = tmp_path / "specollama.toml"
    file.write_text(text)
    with pytest.raises(ConfigError, match=says):
        load_config(file)


async def test_a_pair_is_listed_with_its_engine_whether_it_is_named_or_found() -> None:
    with serving(FakeSGLang()) as url:
        for api in ("sglang", None):
            found = await pair_status(settings(api, url, route=Route.AUTO), {})
            assert (found.target.engine, found.target.version, found.target.fault) == ("SGLang", "0.5.9", "")
            assert (found.route, found.reason) == ("scoring", "all places of a draft in one request to SGLang")
        off = await pair_status(settings("sglang", url, route=Route.PLAIN), {})
        assert (off.route, off.reason) == ("plain", "route plain was asked for")
    gone = await pair_status(settings("sglang", "http://127.0.0.1:1"), {})
    assert gone.route == "none"
    assert "is SGLang running there?" in gone.target.fault


def test_an_ollama_client_gets_the_engines_replies(tmp_path: Path) -> None:
    ask: dict[str, Any] = {"model": "p", "options": {"temperature": 0, "num_predict": 40}, "stream": False}
    chat = {**ask, "messages": [{"role": "user", "content": "Tell me."}]}
    with serving(FakeVLLM()) as engine, serving(FakeLlamaServer()) as other:
        file = tmp_path / "specollama.toml"
        file.write_text(
            f"[endpoints.engine]\nurl = {json.dumps(engine)}\n[endpoints.other]\nurl = {json.dumps(other)}\n"
            f'[serve]\nendpoint = "other"\n[pairs.p]\nroute = "scoring"\nlookahead = 4\ndraft = "lookup"\n'
            f'target = {{ model = "{NAME}", endpoint = "engine", api = "vllm" }}\n'
        )
        with proxied(load_config(file), {}) as (url, _), httpx.Client(base_url=url, trust_env=False) as client:
            told = client.post("/api/chat", json=chat)
            refused = client.post("/api/chat", json={**chat, "format": "json"})
            shown = client.post("/api/show", json={"model": "p"}).json()
    assert told.json()["message"]["content"] == STORY
    assert told.headers["x-specollama-route"] == "scoring"
    assert told.json()["specollama"]["accepted"] > 0
    assert refused.status_code == 400
    assert "format isn't passed on to vLLM, which serves toy-7b" in refused.json()["error"]
    assert (shown["specollama"]["pair"], shown["capabilities"]) == ("p", ["completion"])
