"""The served models of the end-to-end statistics."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator

import pytest
import pytest_asyncio

from specollama.backends.llama_cpp.tokenizer import LlamaTokenizer
from specollama.backends.ollama.client import OllamaServer
from specollama.server.embedded.default_models import packaged_model


@pytest_asyncio.fixture(scope="session")
async def smollm(embedded_url: str) -> AsyncIterator[OllamaServer]:
    """The default pair's server."""
    async with OllamaServer(embedded_url) as server:
        yield server


@pytest.fixture(scope="session")
def smollm_vocabulary() -> Iterator[LlamaTokenizer]:
    """The tokenizer that both models of the default pair have."""
    vocabulary = LlamaTokenizer(packaged_model())
    yield vocabulary
    vocabulary.close()
