"""Pairs opened in process: the small real model, and made-up ones whose probabilities are written down."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest
import pytest_asyncio

from specollama.backends.llama_cpp.model import LoadOptions
from specollama.pairs.routes.local_models import LocalModels, load_models
from specollama.server.embedded.default_models import default_models


@pytest.fixture(scope="session", autouse=True)
def places(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """State and caches of these tests apart from the user's."""
    folder = tmp_path_factory.mktemp("state")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("XDG_STATE_HOME", str(folder))
        yield folder


@pytest_asyncio.fixture(scope="session")
async def real(places: Path) -> AsyncIterator[LocalModels]:
    """SmolLM2-135M in full precision, with its 4-bit self as draft model and prompt lookup."""
    models = default_models()
    pair = await load_models(
        models["target"], {"draft": models["draft"]}, LoadOptions(context_length=1024), lookup=True
    )
    yield pair
    await pair.close()
