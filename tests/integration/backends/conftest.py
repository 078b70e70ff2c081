"""A recorder in front of the embedded server, and pairs that go through it."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio

from specollama.backends.llama_cpp import tokenizer
from specollama.backends.llama_cpp.tokenizer import LlamaTokenizer
from specollama.backends.ollama.client import OllamaServer
from specollama.config.endpoints import Endpoint
from specollama.config.settings import ModelRef, PairSettings
from specollama.spec_decode.types import Route
from tests.support.serving import Recorder, Stage, serving


@pytest.fixture(scope="session")
def stage() -> Iterator[Stage]:
    """A server that plays what a test puts on."""
    stage = Stage()
    with serving(stage) as stage.url:
        yield stage


@pytest.fixture
def recorder(embedded_url: str) -> Recorder:
    return Recorder(embedded_url)


@pytest.fixture
def recorder_url(recorder: Recorder, stage: Stage) -> str:
    stage.app = recorder
    return stage.url


@pytest_asyncio.fixture
async def server(recorder_url: str) -> AsyncIterator[OllamaServer]:
    """The embedded server, seen through the recorder."""
    async with OllamaServer(recorder_url) as server:
        yield server


@pytest.fixture
def pair_settings(recorder_url: str) -> Callable[..., PairSettings]:
    """Settings of the default pair through the recorder."""
    endpoint = Endpoint(recorder_url, "a test")

    def make(**settings: Any) -> PairSettings:
        given = {"route": Route.LANES, "lookahead": 4, **settings}
        return PairSettings(None, ModelRef("target", endpoint), (ModelRef("draft", endpoint),), **given)

    return make


@pytest_asyncio.fixture(scope="session")
async def target_vocabulary(
    embedded_url: str, tmp_path_factory: pytest.TempPathFactory
) -> AsyncIterator[LlamaTokenizer]:
    """The target's tokenizer, rebuilt from what the embedded server shows."""
    path: Path = tmp_path_factory.mktemp("vocabularies") / "target.gguf"
    async with OllamaServer(embedded_url) as server:
        show = await server.show("target", verbose=True)
    tokenizer.write_vocabulary_file(show.model_info, path)
    vocabulary = LlamaTokenizer(path)
    yield vocabulary
    vocabulary.close()
