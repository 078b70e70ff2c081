"""Servers that the tests share: loading a model takes a second, so each is loaded once a session."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from specollama.embedded.models import default_models
from specollama.embedded.serve import Running, Settings, serve_models


@pytest.fixture(scope="session")
def embedded() -> Iterator[Running]:
    """The default pair, `draft` and `target`, with 8 slots of 1024 tokens each and one KV cache for all."""
    with serve_models(default_models(), Settings(num_ctx=1024, parallel=8)) as server:
        yield server


@pytest.fixture(scope="session")
def embedded_url(embedded: Running) -> str:
    return embedded.url
