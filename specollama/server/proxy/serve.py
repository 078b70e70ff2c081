"""Running the proxy: until it is told to stop, with the configuration read anew on SIGHUP."""

from __future__ import annotations

import asyncio
import os
import signal
import socket
import sys
import threading
from collections.abc import AsyncIterator, Iterator, Mapping
from contextlib import asynccontextmanager, closing, contextmanager, suppress
from dataclasses import dataclass, field, replace
from pathlib import Path

import httpx
import uvicorn

from specollama.config import trust
from specollama.config.endpoints import SCHEME_PORTS, is_loopback
from specollama.config.limits import REQUESTS, RequestLimits
from specollama.config.loading import LOCAL_NAME, Config, load_config
from specollama.config.settings import ModelRef
from specollama.errors import ApiError, RunError, SpecollamaError, UsageError
from specollama.pairs.trace.recorder import TraceFile
from specollama.server.http.listening import bind, given_token, required_token, url_of
from specollama.server.http.origins import Origins
from specollama.server.http.protocol import uvicorn_config
from specollama.server.proxy.access_log import JsonLog
from specollama.server.proxy.app import make_app
from specollama.server.proxy.config_generation import ConfigGeneration
from specollama.server.proxy.metrics import Metrics


@dataclass(slots=True)
class Proxy:
    """A proxy that is configured. `token`: what requests must carry. `any_host`: the Host header isn't looked at."""

    config: Config
    environ: Mapping[str, str]
    token: str | None = None
    any_host: bool = False
    look: bool = False  # at the servers when it starts, and tell what is wrong
    trace: TraceFile | None = None  # that the pairs' replies are added to
    limits: RequestLimits = REQUESTS
    metrics: Metrics = field(default_factory=Metrics)
    current: ConfigGeneration = field(init=False)
    log: JsonLog = field(init=False)
    loop: asyncio.AbstractEventLoop | None = None  # the one that serves, while it does

    def __post_init__(self) -> None:
        self.log = JsonLog(self.metrics)
        self.current = self._generation(self.config)

    def server(self, kind: type[uvicorn.Server] = uvicorn.Server) -> uvicorn.Server:
        body = self.current.serve.max_body
        limits = replace(self.limits, body=body, bodies=max(self.limits.bodies, 4 * body))
        app = make_app(
            lambda: self.current,
            lifespan=self._living,
            metrics=self.metrics,
            log=self.log,
            token=self.token,
            any_host=self.any_host,
            origins=Origins.read(self.environ),
            limits=limits,
        )
        config = uvicorn_config(
            app,
            limits=limits,
            lifespan="on",
            log_level="critical",  # the log is ours
            server_header=False,
            date_header=False,
            timeout_keep_alive=75,  # seconds: Ollama itself never closes a connection that idles
            timeout_graceful_shutdown=max(1, round(self.current.serve.shutdown_timeout)),
        )
        return kind(config)

    async def reload(self) -> None:
        """Read the file again. A wrong one is refused in the log, and the old one stays."""
        try:
            fresh = await self._generation(trust.reread(self.config)).open()
        except SpecollamaError as error:
            self.log.write({"event": "reload refused, the old configuration stays", "error": str(error)})
            return
        old, self.current = self.current, fresh
        await old.retire()
        self.log.write({"event": "reloaded", "pairs": list(fresh.pool.pairs)})

    def _generation(self, config: Config) -> ConfigGeneration:
        return ConfigGeneration(config, self.environ, token=self.token, trace=self.trace)

    @asynccontextmanager
    async def _living(self) -> AsyncIterator[None]:
        await self.current.open()
        loop, tasks = asyncio.get_running_loop(), set[asyncio.Task[None]]()
        self.loop = loop

        def hung_up() -> None:
            task = loop.create_task(self.reload())
            tasks.add(task)
            task.add_done_callback(tasks.discard)

        with suppress(NotImplementedError, RuntimeError, ValueError, AttributeError):  # Windows; not the main thread
            loop.add_signal_handler(signal.SIGHUP, hung_up)
        if self.look:
            tasks.add(loop.create_task(self._look()))
        yield
        for task in tasks:
            task.cancel()
        await self.current.retire()

    async def _look(self) -> None:
        """Tell of a server that isn't there and of models that it hasn't: not later, by somebody's failed request."""
        default = self.current.default
        try:
            await default.json("GET", "/api/version")
        except ApiError as fault:
            self.log.write({"event": "what isn't a pair's can't be passed on: see serve.endpoint", "error": fault.text})
        for name, opened in self.current.pool.pairs.items():
            if isinstance(opened.settings.target, ModelRef):
                try:
                    await opened.pair.model_infos()
                except SpecollamaError as error:
                    self.log.write({"event": f"pair {name} can't be speculated", "error": str(error)})


def run(config: Config, *, host: str, port: int, allow_anyone: bool, trace: TraceFile | None = None) -> None:
    """Serve until interrupted. Says on stderr when it is ready.

    ConfigError for a wrong configuration, UsageError for an open address without a token, RunError for a port that is
    taken.
    """
    token = given_token() if allow_anyone else required_token(host)
    proxy = Proxy(config, os.environ, token, any_host=allow_anyone, look=True, trace=trace)
    with closing(bind(host, port)) as listener:
        _check_not_itself(proxy, listener)
        for line in _greeting(proxy, url_of(listener)):
            print(line, file=sys.stderr, flush=True)
        server = proxy.server()
        with suppress(KeyboardInterrupt):  # which uvicorn raises again after it has shut down
            server.run([listener])
        if not server.started:
            raise RunError("the server could not start")


@contextmanager
def serve_in_thread(
    config: Config | Path,
    environ: Mapping[str, str],
    *,
    token: str | None = None,
    trace: TraceFile | None = None,
    limits: RequestLimits = REQUESTS,
) -> Iterator[tuple[str, Proxy]]:
    """A proxy on a free loopback port, in a thread of its own, for the length of a `with` block: URL and proxy."""
    loaded = config if isinstance(config, Config) else load_config(config)
    proxy = Proxy(loaded, environ, token, trace=trace, limits=limits)
    with closing(bind("127.0.0.1", 0)) as listener:
        server = proxy.server(_Threaded)
        thread = threading.Thread(target=server.run, args=([listener],), name="proxy")
        thread.start()
        try:
            yield url_of(listener), proxy
        finally:
            server.should_exit = True
            thread.join()


def _check_not_itself(proxy: Proxy, listener: socket.socket) -> None:
    """Passing on to itself would never end."""
    host, port = listener.getsockname()[:2]
    for upstream in proxy.current.upstreams.values():
        url = httpx.URL(upstream.endpoint.url)
        here = url.host in (host, "localhost") or is_loopback(url.host)
        if here and (url.port or int(SCHEME_PORTS[url.scheme])) == port:
            raise UsageError(
                f"{upstream.endpoint} is this server itself: name the server behind it, or listen on another --port"
            )


def _greeting(proxy: Proxy, url: str) -> list[str]:
    pairs = [f"{name} ({opened.settings.target.model})" for name, opened in proxy.current.pool.pairs.items()]
    return [
        f"serving on {url}; all else is passed on to {proxy.current.default.endpoint}",
        f"pairs: {', '.join(pairs)}"
        if pairs
        else f"no pairs are configured, everything is passed on: define one in {proxy.config.file or LOCAL_NAME}",
    ]


class _Threaded(uvicorn.Server):
    """Leaves the signals to the thread that owns them."""

    @contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield
