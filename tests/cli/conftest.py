"""The command line called in this process, with nothing set and nothing there."""

from __future__ import annotations

from pathlib import Path

import pytest
from calls import Call, caller, pair_flags

SETTING_VARIABLES = ("OLLAMA_HOST", "SPECOLLAMA_CONFIG", "NO_COLOR", "FORCE_COLOR", "COLUMNS", "PYTHONIOENCODING")


@pytest.fixture(autouse=True)
def nothing_set(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """An empty working directory, and no settings of the user's."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "no-settings"))
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    for variable in SETTING_VARIABLES:
        monkeypatch.delenv(variable, raising=False)


@pytest.fixture
def call(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Call:
    return caller(monkeypatch, capsys)


@pytest.fixture
def pair(embedded_url: str) -> list[str]:
    """The flags for the embedded pair at temperature 0, on a route that is cheap on a CPU."""
    return pair_flags(embedded_url)
