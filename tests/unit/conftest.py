"""Unit tests open no model and no server. What they might read or keep of the user's is elsewhere."""

from __future__ import annotations

from collections.abc import Iterator

import pytest


@pytest.fixture(scope="module", autouse=True)  # a worker may run other tests after these
def own_folders(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """Configuration, caches, state and data of these tests, apart from the user's."""
    folder = tmp_path_factory.mktemp("user")
    with pytest.MonkeyPatch.context() as patch:
        for kind in ("CONFIG", "CACHE", "STATE", "DATA"):
            patch.setenv(f"XDG_{kind}_HOME", str(folder / kind.lower()))
        yield
