"""Proxies in threads: in front of the embedded engine, and in front of servers of the tests' own."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import httpx
import pytest

from specollama.config.limits import REQUESTS, RequestLimits
from specollama.config.loading import Config, load_config
from specollama.server.proxy.serve import Proxy, serve_in_thread
from tests.support.configured import written
from tests.support.misbehaving import Manners, Misbehaving
from tests.support.scripted_ollama import SONG, ScriptedOllama, song
from tests.support.serving import Stage
from tests.support.serving import serving as serving_app

Up = Callable[[Any], str]


@pytest.fixture(scope="session")
def stages() -> Iterator[list[Stage]]:
    """Running servers for the applications of one test after another."""
    with ExitStack() as stack:
        running = [Stage() for _ in range(3)]
        for stage in running:
            stage.url = stack.enter_context(serving_app(stage))
        yield running


@pytest.fixture
def up(stages: list[Stage]) -> Up:
    """Serve an ASGI application for the length of a test; answers its URL."""
    free = iter(stages)

    def serve(app: Any) -> str:
        stage = next(free)
        stage.app = app
        return stage.url

    return serve


@pytest.fixture
def scripted() -> ScriptedOllama:
    return song()


@pytest.fixture
def song_text() -> str:
    return "".join(piece.text for piece in SONG)


@pytest.fixture
def misbehaving(scripted: ScriptedOllama, up: Up) -> Callable[..., Misbehaving]:
    """A server in front of the scripted pair with the given manners; its `url` is where it is."""

    def make(manners: Manners | None = None, **more: Any) -> Misbehaving:
        server = Misbehaving(up(scripted), manners or Manners(), **more)
        server.url = up(server)
        return server

    return make


@pytest.fixture
def config(tmp_path: Path) -> Callable[..., Config]:
    return lambda url, **parts: load_config(written(tmp_path, url, **parts))


@pytest.fixture
def proxies(
    config: Callable[..., Config], monkeypatch: pytest.MonkeyPatch
) -> Iterator[Callable[..., tuple[str, Proxy]]]:
    """Start a proxy in front of a URL, with further settings; answers its own URL and itself."""
    with ExitStack() as stack:

        def start(
            url: str,
            token: str | None = None,
            environ: dict[str, str] | None = None,
            limits: RequestLimits = REQUESTS,
            **parts: Any,
        ) -> Any:
            return stack.enter_context(
                serve_in_thread(config(url, **parts), {**os.environ, **(environ or {})}, token=token, limits=limits)
            )

        yield start


@pytest.fixture
def through(proxies: Callable[..., tuple[str, Proxy]]) -> Iterator[Callable[..., httpx.Client]]:
    """A client of a proxy in front of a URL."""
    with ExitStack() as stack:

        def start(url: str, **parts: Any) -> httpx.Client:
            base, _ = proxies(url, **parts)
            return stack.enter_context(httpx.Client(base_url=base, timeout=60, trust_env=False))

        yield start


@pytest.fixture(scope="session")
def engine_config(embedded_url: str, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The pair `duo` of the embedded engine, speculated whether it pays or not."""
    return written(tmp_path_factory.mktemp("engine"), embedded_url)


@pytest.fixture(scope="session")
def engine_proxy(engine_config: Path) -> Iterator[str]:
    """The URL of a proxy in front of the embedded engine."""
    with serve_in_thread(engine_config, dict(os.environ)) as (url, _):
        yield url


@pytest.fixture(autouse=True)
def _own_cache(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """For tests of scripted servers, whose vocabularies and measurements are made up."""
    if not any(name.startswith(("embedded", "engine")) for name in request.fixturenames):
        monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
