"""Running the server: for the length of a `with` block, or until it is interrupted."""

from __future__ import annotations

import os
import sys
import threading
from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing, contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import uvicorn

from specollama.server.embedded.app import make_app
from specollama.server.embedded.default_models import resolve
from specollama.server.embedded.llama_server_process import LlamaServerProcess
from specollama.server.embedded.model_card import ModelCard
from specollama.server.embedded.served_model import ServedModel
from specollama.server.http.listening import bind, required_token, url_of
from specollama.server.http.origins import Origins
from specollama.server.http.protocol import uvicorn_config

_PATIENCE = 2  # seconds that a reply gets to end at shutdown: one without a limit never would


@dataclass(frozen=True, slots=True)
class ServeSettings:
    """How the models are loaded; `LlamaServerProcess` says what each means."""

    num_ctx: int = 4096
    parallel: int = 8
    threads: int | None = None
    unified: bool = True
    idle_slots: bool = False


@dataclass(frozen=True, slots=True)
class RunningServer:
    """A server that is up: where it is, and the engines behind it, by model."""

    url: str
    engines: Mapping[str, LlamaServerProcess] = field(repr=False)


@contextmanager
def serve_models(
    models: Mapping[str, Path],
    settings: ServeSettings | None = None,
    *,
    parameters: Mapping[str, Mapping[str, Any]] | None = None,
    token: str | None = None,
) -> Iterator[RunningServer]:
    """Serve GGUF files under their names on a free loopback port, in a thread of its own.

    A thread, so that code which blocks may talk to it as well. `parameters`: Modelfile PARAMETERs by model.
    `token`: what requests must carry. Raises as `load` does.
    """
    served = load(models, settings or ServeSettings(), parameters or {})
    with closing(bind("127.0.0.1", 0)) as listener:
        server = _Threaded(_config(served, token))
        thread = threading.Thread(target=server.run, args=([listener],), name="embedded server")
        thread.start()
        try:
            yield RunningServer(url_of(listener), {name: model.engine for name, model in served.items()})
        finally:
            server.should_exit = True
            thread.join()


def run(arguments: Sequence[str], *, host: str, port: int, settings: ServeSettings) -> None:
    """Serve the models that `arguments` name (see `default_models.resolve`) until interrupted.

    Says on stderr when it is ready. `UsageError` for bad arguments, `RunError` for a port that is taken.
    """
    token = required_token(host)
    with closing(bind(host, port)) as listener:
        served = load(resolve(arguments), settings, {})
        print(f"serving {', '.join(served)} on {url_of(listener)}", file=sys.stderr, flush=True)
        with suppress(KeyboardInterrupt):  # which uvicorn raises again after it has shut down
            uvicorn.Server(_config(served, token)).run([listener])


def load(
    models: Mapping[str, Path], settings: ServeSettings, parameters: Mapping[str, Mapping[str, Any]]
) -> dict[str, ServedModel]:
    """Load each model: `UsageError` for a file that is not GGUF, `RunError` where llama.cpp refuses it."""
    cards = [ModelCard.read(name, path, parameters.get(name)) for name, path in models.items()]
    return {card.name: ServedModel(card, _engine(card.path, settings)) for card in cards}


def _engine(path: Path, settings: ServeSettings) -> LlamaServerProcess:
    return LlamaServerProcess(
        path,
        num_ctx=settings.num_ctx,
        parallel=settings.parallel,
        threads=settings.threads,
        unified=settings.unified,
        idle_slots=settings.idle_slots,
    )


def _config(served: Mapping[str, ServedModel], token: str | None) -> uvicorn.Config:
    return uvicorn_config(
        make_app(served, token, Origins.read(os.environ)),
        lifespan="on",
        log_level="warning",
        timeout_graceful_shutdown=_PATIENCE,
    )


class _Threaded(uvicorn.Server):
    """Leaves the signals to the thread that owns them."""

    @contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield
