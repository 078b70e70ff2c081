"""Servers that the tests share: loading a model takes a second, so each is loaded once a session.

The fixtures import what they serve, so that unit tests, which serve nothing, load none of it.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

import httpx
import pytest

from tests.support import draws as draws  # registers the profiles of hypothesis

if TYPE_CHECKING:
    from specollama.server.embedded.serve import RunningServer


@pytest.fixture(scope="session")
def embedded() -> Iterator[RunningServer]:
    """The default pair, `draft` and `target`, with 8 slots of 1024 tokens each and one KV cache for all."""
    from specollama.server.embedded.default_models import default_models
    from specollama.server.embedded.serve import ServeSettings, serve_models

    with serve_models(default_models(), ServeSettings(num_ctx=1024, parallel=8)) as server:
        yield server


@pytest.fixture(scope="session")
def embedded_url(embedded: RunningServer) -> str:
    return embedded.url


@pytest.fixture(scope="session")
def http(embedded_url: str) -> Iterator[httpx.Client]:
    """A client of the server `embedded`."""
    with httpx.Client(base_url=embedded_url, timeout=120) as client:
        yield client


@pytest.fixture(scope="session")
def small() -> Iterator[RunningServer]:
    """The draft alone as `small`, with 2 slots of 64 tokens, and PARAMETERs as of a Modelfile."""
    from specollama.server.embedded.default_models import default_models
    from specollama.server.embedded.serve import ServeSettings, serve_models

    models = {"small": default_models()["draft"]}
    parameters = {"small": {"temperature": 0, "num_predict": 3, "stop": [" canvas", "\n"]}}
    with serve_models(models, ServeSettings(num_ctx=64, parallel=2), parameters=parameters) as server:
        yield server
