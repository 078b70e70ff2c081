"""Pairs whose target is on a fake engine, and the real one that the embedded server wraps."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

for folder in ("backends", "core"):
    sys.path.insert(0, str(Path(__file__).parents[1] / folder))


@pytest.fixture(autouse=True)
def places(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """State and caches of each test apart from the user's."""
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
