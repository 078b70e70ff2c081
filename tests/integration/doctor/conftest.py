"""Places of these tests' own, the command line called in this process, and a model store with the small models."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from specollama.server.embedded.default_models import default_models
from tests.support.calls import Call, caller


@pytest.fixture(scope="session")
def models() -> dict[str, Path]:
    """The small real models by their names; written into the user's own cache, once."""
    return default_models()


@pytest.fixture(autouse=True)
def places(models: dict[str, Path], monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """An empty working directory, nothing configured, and nothing measured before."""
    monkeypatch.chdir(tmp_path)
    for variable, name in (("CONFIG", "config"), ("CACHE", "cache"), ("STATE", "state")):
        monkeypatch.setenv(f"XDG_{variable}_HOME", str(tmp_path / name))
    for variable in ("OLLAMA_HOST", "OLLAMA_MODELS", "SPECOLLAMA_CONFIG"):
        monkeypatch.delenv(variable, raising=False)


@pytest.fixture
def call(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Call:
    return caller(monkeypatch, capsys)


@pytest.fixture
def store(models: dict[str, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Ollama's model store with `target` and `draft`, the small real models."""
    folder = tmp_path / "models"
    (folder / "blobs").mkdir(parents=True)
    for number, (name, file) in enumerate(models.items()):
        (folder / "blobs" / f"sha256-{number:064d}").symlink_to(file)
        layer = {"mediaType": "application/vnd.ollama.image.model", "digest": f"sha256:{number:064d}", "size": 1}
        manifest = folder / "manifests" / "registry.ollama.ai" / "library" / name / "latest"
        manifest.parent.mkdir(parents=True)
        manifest.write_text(json.dumps({"schemaVersion": 2, "layers": [layer]}))
    monkeypatch.setenv("OLLAMA_MODELS", str(folder))
    return folder


@pytest.fixture
def fake_ollama(tmp_path: Path) -> Callable[[str], Path]:
    """An `ollama` that answers as Ollama does, with the given manners (fake_ollama.py)."""

    def make(manners: str) -> Path:
        program = tmp_path / "ollama"
        source = (
            (Path(__file__).parents[2] / "support" / "fake_ollama.py").read_text().replace("MANNERS", repr(manners), 1)
        )
        program.write_text(f"#!{sys.executable}\n{source}")
        program.chmod(0o755)
        return program

    return make
