"""Servers that misbehave, and a cache of the tests' own: what is measured here must not be kept."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

from specollama.server.embedded.default_models import default_models
from specollama.server.embedded.serve import RunningServer, ServeSettings, serve_models
from tests.support.misbehaving import Manners, Misbehaving
from tests.support.scripted_ollama import SONG, ScriptedOllama, song
from tests.support.serving import Stage, serving

pytest.register_assert_rewrite("tests.support.hearing")  # so that a text which isn't plain's is shown


@pytest.fixture(scope="session")
def cache_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("cache")


@pytest.fixture(scope="session")
def short() -> Iterator[RunningServer]:
    """The target alone, whose texts are the same in whatever batches it works, with 2 slots of 64 tokens."""
    with serve_models({"target": default_models()["target"]}, ServeSettings(num_ctx=64, parallel=2)) as server:
        yield server


@pytest.fixture(autouse=True)
def _own_cache(
    request: pytest.FixtureRequest, cache_folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A new one for each test of a scripted server: its measurements are those of what the test does with it."""
    engines = [name for name in request.fixturenames if name.startswith("embedded") or name in ("small", "short")]
    for name in engines:
        request.getfixturevalue(name)  # these may fill the user's own cache, and once only
    monkeypatch.setenv("XDG_CACHE_HOME", str(cache_folder if engines else tmp_path / "cache"))


@pytest.fixture(scope="session")
def stages() -> Iterator[list[Stage]]:
    """Running servers for the applications of one test after another."""
    with ExitStack() as stack:
        running = []
        for _ in range(4):
            stage = Stage()
            stage.url = stack.enter_context(serving(stage))
            running.append(stage)
        yield running


@pytest.fixture
def serve(stages: list[Stage]) -> Callable[[Any], str]:
    """Serve an application for the length of a test; answers its URL."""
    free = iter(stages)

    def up(app: Any) -> str:
        stage = next(free)
        stage.app = app
        return stage.url

    return up


@pytest.fixture
def scripted() -> ScriptedOllama:
    return song()


@pytest.fixture
def scripted_url(scripted: ScriptedOllama, serve: Callable[[Any], str]) -> str:
    return serve(scripted)


@pytest.fixture
def misbehaving(scripted_url: str, serve: Callable[[Any], str]) -> Callable[..., Misbehaving]:
    """A server in front of the scripted pair with the given manners; its `url` is where it is."""

    def make(manners: Manners | None = None, **more: Any) -> Misbehaving:
        server = Misbehaving(scripted_url, manners or Manners(), **more)
        server.url = serve(server)
        return server

    return make


@pytest.fixture
def song_text() -> str:
    return "".join(piece.text for piece in SONG)
