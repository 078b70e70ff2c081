"""Clients as people use them, against the proxy in front of a real engine: each gets the target's own text."""

from __future__ import annotations

import json
import shutil
import subprocess
from pathlib import Path
from typing import Any

import ollama
import openai
import pytest
from langchain_ollama import ChatOllama

QUESTION = "Name three colours."
MESSAGES: Any = [{"role": "user", "content": QUESTION}]
GREEDY = {"temperature": 0, "num_predict": 24}
JAVASCRIPT = Path(__file__).parent / "javascript"


@pytest.fixture(scope="module")
def plain(embedded_url: str) -> str:
    """What the target alone answers."""
    with ollama.Client(embedded_url) as client:
        return str(client.chat("target", MESSAGES, options=GREEDY).message.content)


def speculated(headers: Any) -> bool:
    return bool(headers["x-specollama-route"] == "lanes")


def test_ollama_python(engine_proxy: str, plain: str) -> None:
    with ollama.Client(engine_proxy) as client:
        whole = client.chat("duo", MESSAGES, options=GREEDY)
        parts = list(client.chat("duo", MESSAGES, stream=True, options=GREEDY))
        names = [model.model for model in client.list().models]
        shown, running = client.show("duo"), client.ps()
    assert whole.message.content == plain
    assert "".join(str(part.message.content) for part in parts) == plain
    assert (parts[-1].done_reason, parts[-1].eval_count) == ("length", 24)
    assert names == ["duo", "draft:latest", "target:latest"]
    assert shown.modelinfo
    assert running.models


async def test_ollama_python_asynchronous(engine_proxy: str, plain: str) -> None:
    client = ollama.AsyncClient(engine_proxy)
    parts = [part async for part in await client.chat("target", MESSAGES, stream=True, options=GREEDY)]
    assert "".join(str(part.message.content) for part in parts) == plain
    with pytest.raises(ollama.ResponseError, match="model 'nope' not found"):
        await client.chat("nope", MESSAGES)
    await client._client.aclose()


def test_openai_python(engine_proxy: str, plain: str) -> None:
    with openai.OpenAI(base_url=f"{engine_proxy}/v1", api_key="unused") as client:
        raw = client.chat.completions.with_raw_response.create(
            model="duo", messages=MESSAGES, temperature=0, max_completion_tokens=24
        )
        whole = raw.parse()
        stream = client.chat.completions.create(
            model="duo",
            messages=MESSAGES,
            temperature=0,
            max_tokens=24,
            stream=True,
            stream_options={"include_usage": True},
        )
        chunks = list(stream)
        models = [model.id for model in client.models.list()]
        completion = client.completions.create(model="duo", prompt=QUESTION, temperature=0, max_tokens=24)
        logprobs = client.chat.completions.create(
            model="duo", messages=MESSAGES, temperature=0, max_tokens=3, logprobs=True, top_logprobs=2
        )
        with pytest.raises(openai.NotFoundError, match="no-such"):
            client.models.retrieve("no-such")
    assert speculated(raw.headers)
    assert whole.choices[0].message.content == plain
    assert (whole.choices[0].finish_reason, whole.usage and whole.usage.completion_tokens) == ("length", 24)
    texts = [chunk.choices[0].delta.content for chunk in chunks if chunk.choices]
    assert "".join(text or "" for text in texts) == plain
    assert [chunk.choices[0].finish_reason for chunk in chunks if chunk.choices][-1] == "length"
    assert chunks[-1].usage
    assert chunks[-1].usage.total_tokens == chunks[-1].usage.prompt_tokens + 24
    assert models == ["duo", "draft:latest", "target:latest"]
    assert completion.choices[0].text == plain, "Ollama puts the prompt of a completion into its template"
    rows = logprobs.choices[0].logprobs
    assert rows
    assert rows.content
    assert "".join(row.token for row in rows.content) == logprobs.choices[0].message.content
    assert [len(row.top_logprobs) for row in rows.content] == [2, 2, 2]


def test_langchain(engine_proxy: str, plain: str) -> None:
    model = ChatOllama(model="duo", base_url=engine_proxy, temperature=0, num_predict=24, validate_model_on_init=True)
    whole = model.invoke(QUESTION)
    parts = list(model.stream(QUESTION))
    model._client._client.close()  # it has no way of its own to close what it opened
    assert whole.content == plain
    assert "".join(str(part.content) for part in parts) == plain
    assert whole.response_metadata["done_reason"] == "length"
    assert whole.usage_metadata
    assert whole.usage_metadata["output_tokens"] == 24


@pytest.mark.skipif(shutil.which("node") is None, reason="node isn't installed")
@pytest.mark.skipif(
    not (JAVASCRIPT / "node_modules").exists(), reason="npm install in tests/integration/proxy/javascript wasn't run"
)
def test_ollama_js(engine_proxy: str, plain: str) -> None:
    ran = subprocess.run(
        ["node", "chat.mjs", engine_proxy, QUESTION], cwd=JAVASCRIPT, capture_output=True, text=True, timeout=60
    )
    assert ran.returncode == 0, ran.stderr
    told = json.loads(ran.stdout)
    assert told["whole"] == told["streamed"] == told["generated"] == plain
    assert told["last"]["done_reason"] == "length"
    assert told["last"]["specollama"]["route"] == "lanes"
    assert told["models"] == ["duo", "draft:latest", "target:latest"]
    assert told["missing"] == "model 'nope' not found"
