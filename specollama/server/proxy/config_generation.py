"""All that hangs on one reading of the configuration: pairs, servers, limits. A reload makes another one."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from time import monotonic
from typing import Any, Self

import httpx
from starlette.requests import HTTPConnection
from starlette.types import ASGIApp, Receive, Scope, Send

from specollama.backends.http import read_json
from specollama.backends.ollama.model_name import full_name
from specollama.config.endpoints import Endpoint
from specollama.config.loading import Config
from specollama.config.settings import ModelRef, ollama_endpoint
from specollama.errors import ApiError
from specollama.pairs.pool import PairEntry, PairPool
from specollama.pairs.trace.recorder import TraceFile
from specollama.server.proxy.upstream import Upstream

_KEY = "specollama.generation"
_PATIENCE = 5.0  # seconds that a server gets to list its models: the others' are wanted too
_LISTING_AGE = 30.0  # seconds after which it is asked anew which server has which model


Listed = tuple[dict[str, Any], Upstream, str]
"""A model as it is listed, the server that has it, and its name there."""


class ConfigGeneration:
    """Open it in the event loop that serves. Once `retire`d it closes with the last request that uses it.

    Raises ConfigError when a variable that holds a token isn't set.
    """

    def __init__(
        self, config: Config, environ: Mapping[str, str], *, token: str | None, trace: TraceFile | None = None
    ) -> None:
        self.config = config
        self.serve = config.table.serve
        self.pool = PairPool(config, environ, trace)
        self._stack = AsyncExitStack()
        self.upstreams = {
            endpoint.url: Upstream.open(endpoint, environ, hide_authorization=token is not None)
            for endpoint in _endpoints(config, self.pool, environ)
        }
        self.default = self.upstreams[config.default_endpoint(environ).url]
        self._elsewhere: dict[str, tuple[Upstream, str]] = {}
        self._listed_at: float | None = None
        self._users = 0
        self._retired = False

    async def open(self) -> Self:
        await self._stack.enter_async_context(self.pool)
        for upstream in self.upstreams.values():
            self._stack.push_async_callback(upstream.http.aclose)
        return self

    @asynccontextmanager
    async def use(self) -> AsyncIterator[ConfigGeneration]:
        self._users += 1
        try:
            yield self
        finally:
            self._users -= 1
            await self._close_if_idle()

    async def retire(self) -> None:
        self._retired = True
        await self._close_if_idle()

    async def _close_if_idle(self) -> None:
        if self._retired and not self._users:
            await self._stack.aclose()

    def upstream_of(self, opened: PairEntry) -> Upstream:
        """Where the rest is asked about a pair's target; the default one for a target that no Ollama has."""
        server = ollama_endpoint(opened.settings.target)
        return self.upstreams[server.url] if server else self.default

    async def locate_model(self, model: object) -> tuple[Upstream, str | None]:
        """Where a model of no pair is, and what it is called there; None: as it was asked for."""
        if len(self.upstreams) == 1 or not isinstance(model, str):
            return self.default, None
        if self._listed_at is None or monotonic() - self._listed_at > _LISTING_AGE:
            with suppress(ApiError):
                await self.models()
        found = self._elsewhere.get(full_name(model))
        return found if found is not None else (self.default, None)

    async def models(self) -> list[Listed]:
        """The models of all servers that answer, names unique. Raises ApiError when none does."""
        merged = await self.merge_listings("/api/tags")
        self._elsewhere, self._listed_at = {}, monotonic()
        for entry, upstream, own in merged:
            if upstream is not self.default:
                self._elsewhere[full_name(str(entry.get("model") or entry["name"]))] = (upstream, own)
        return merged

    async def merge_listings(self, path: str) -> list[Listed]:
        """The `models` of all servers that answer: each with its server, and its name there."""
        upstreams = list(self.upstreams.values())
        answers = await asyncio.gather(*(_models(each, path) for each in upstreams), return_exceptions=True)
        failed = [answer for answer in answers if isinstance(answer, BaseException)]
        if len(failed) == len(upstreams):
            raise failed[0]
        found: list[Listed] = []
        taken: set[str] = set()
        for upstream, models in zip(upstreams, answers, strict=True):
            for entry in () if isinstance(models, BaseException) else models:
                own = str(entry.get("name"))
                name = own if full_name(own) not in taken else f"{own}@{upstream.name}"
                taken.add(full_name(name))
                found.append(({**entry, "name": name, "model": name}, upstream, own))
        return found


class PinnedConfig:
    """ASGI middleware: each request keeps to the configuration that it began with, and keeps it open."""

    def __init__(self, app: ASGIApp, *, current: Callable[[], ConfigGeneration]) -> None:
        self._app = app
        self._current = current

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        async with self._current().use() as generation:
            scope[_KEY] = generation
            await self._app(scope, receive, send)


def generation_of(request: HTTPConnection) -> ConfigGeneration:
    generation: ConfigGeneration = request.scope[_KEY]
    return generation


def _endpoints(config: Config, pool: PairPool, environ: Mapping[str, str]) -> list[Endpoint]:
    """The default one, those of the file, and those that stand in a pair's target, but no other engine's."""
    models = [opened.settings.target for opened in pool.pairs.values()]
    targets = [server for server in map(ollama_endpoint, models) if server]
    scored = [model for model in models if isinstance(model, ModelRef) and model.is_scoring_engine]
    engines = {endpoint.url for model in scored for endpoint in model.endpoints}
    named = [endpoint for endpoint in config.endpoints() if endpoint.url not in engines]
    found: dict[str, Endpoint] = {}
    for endpoint in (config.default_endpoint(environ), *named, *targets):
        found.setdefault(endpoint.url, endpoint)
    return list(found.values())


async def _models(upstream: Upstream, path: str) -> list[dict[str, Any]]:
    response = await upstream.json("GET", path, limit=_PATIENCE)
    try:
        models = read_json(response.raise_for_status().content)["models"] or []
        listed = [entry for entry in models if isinstance(entry, dict)]
    except (httpx.HTTPError, ValueError, KeyError, TypeError) as error:
        raise ApiError(502, f"{upstream.endpoint}: {path} isn't answered as Ollama does") from error
    return [entry for entry in listed if isinstance(entry.get("name"), str) and entry["name"]]
