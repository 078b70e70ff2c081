"""The default pair on two servers, and what the target alone answers."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Iterator

import httpx
import pytest
import pytest_asyncio

from specollama.backends.llama_cpp import tokenizer
from specollama.backends.llama_cpp.tokenizer import LlamaTokenizer
from specollama.backends.ollama.client import OllamaServer
from specollama.config.endpoints import Endpoint
from specollama.config.settings import ModelRef, PairSettings
from specollama.spec_decode.types import Route
from tests.support.prompts import PROMPTS
from tests.support.servers import serving
from tests.support.target_alone import LENGTH, Alone


@pytest.fixture(scope="session")
def urls() -> Iterator[dict[str, str]]:
    with serving("target") as target, serving("draft") as draft:
        yield {"target": target, "draft": draft}


@pytest_asyncio.fixture(scope="session")
async def servers(urls: dict[str, str]) -> AsyncIterator[dict[str, OllamaServer]]:
    async with OllamaServer(urls["target"]) as target, OllamaServer(urls["draft"]) as draft:
        yield {"target": target, "draft": draft}


@pytest.fixture(scope="session")
def settings(urls: dict[str, str]) -> PairSettings:
    refs = {name: ModelRef(name, Endpoint(url, "a test")) for name, url in urls.items()}
    options = {"temperature": 0, "num_predict": LENGTH}
    return PairSettings(None, refs["target"], (refs["draft"],), lookahead=6, route=Route.LANES, options=options)


@pytest.fixture(scope="session")
def alone(urls: dict[str, str]) -> dict[str, Alone]:
    """By prompt, through /api/chat and by no code of ours."""
    with httpx.Client(base_url=urls["target"], timeout=300) as client:
        return {prompt: _alone(client, prompt) for prompt in PROMPTS}


def _alone(client: httpx.Client, prompt: str) -> Alone:
    body = {
        "model": "target",
        "messages": [{"role": "user", "content": prompt}],
        "logprobs": True,
        "top_logprobs": 2,
        "options": {"temperature": 0, "num_predict": LENGTH},
    }
    response = client.post("/api/chat", json=body).raise_for_status()
    chunks = [json.loads(line) for line in response.content.split(b"\n") if line]
    shown = [chunk for chunk in chunks if chunk["message"]["content"]]
    tops = [[top["logprob"] for top in chunk["logprobs"][0]["top_logprobs"]] for chunk in shown]
    return Alone(tuple(chunk["message"]["content"] for chunk in shown), tuple(best - next_ for best, next_ in tops))


@pytest_asyncio.fixture(scope="session")
async def vocabulary(
    servers: dict[str, OllamaServer], tmp_path_factory: pytest.TempPathFactory
) -> AsyncIterator[LlamaTokenizer]:
    path = tmp_path_factory.mktemp("lossless") / "target.gguf"
    tokenizer.write_vocabulary_file((await servers["target"].show("target", verbose=True)).model_info, path)
    vocabulary = LlamaTokenizer(path)
    yield vocabulary
    vocabulary.close()
