"""The systems under comparison: the target alone, the pair on its routes, and optionally another engine."""

from __future__ import annotations

import asyncio
import hashlib
from collections.abc import AsyncGenerator, Mapping
from contextlib import AbstractAsyncContextManager, AsyncExitStack, aclosing, asynccontextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, Protocol

from specollama.backends.engines.detect import detect
from specollama.backends.engines.llama_server import LlamaServer
from specollama.backends.ollama import model_store
from specollama.backends.ollama.client import OllamaServer
from specollama.backends.ollama.model_info import fetch_model_info, forwarded_options
from specollama.backends.ollama.request_bodies import RequestTemplate
from specollama.config.settings import DraftRef, FileRef, ModelRef, PairSettings, PromptLookup
from specollama.errors import (
    BrokenReply,
    EndpointError,
    ModelMissing,
    Refused,
    RunError,
    Unreachable,
    UsageError,
    one_line,
)
from specollama.pairs.pair import Pair
from specollama.pairs.request import ChatInput
from specollama.pairs.routes.local import target_file
from specollama.pairs.routes.native import with_start_advice
from specollama.spec_decode.events import Done, Event, Text
from specollama.spec_decode.metrics import Stats
from specollama.spec_decode.types import Origin, Route, SamplingOptions
from specollama.tools.bench.fresh import LearnedState, load, unload

PLAIN = str(Route.PLAIN)
AGAINST = "against"


class ReplySource(Protocol):
    """Answers a conversation with the events of a reply, like a pair."""

    def reply(self, conversation: ChatInput) -> AsyncGenerator[Event, None]: ...


class Contestant(Protocol):
    """One of those that are compared.

    `engine`: the URL of what runs the target; "" where it is opened in process for each reply. `remembers`: that
    engine can't be started afresh between two replies, so that a prompt it was asked before may be in its KV cache,
    and its reply in whatever else it keeps.
    """

    @property
    def engine(self) -> str: ...

    @property
    def remembers(self) -> bool: ...

    def fresh(self, *, again: bool) -> AbstractAsyncContextManager[ReplySource]:
        """Started afresh, as far as it can be. `again`: the next reply repeats one.

        Raises EndpointError.
        """
        ...


@dataclass(slots=True)
class Contestants:
    """All sides by name, plain first; `models` and `servers` describe them in the results."""

    by_name: dict[str, Contestant] = field(default_factory=dict)
    models: dict[str, dict[str, Any]] = field(default_factory=dict)
    servers: dict[str, str] = field(default_factory=dict)  # by URL: what runs there, with its version

    def as_object(self) -> dict[str, dict[str, Any]]:
        """How each side begins its replies."""
        return {name: {"engine": side.engine, "remembers": side.remembers} for name, side in self.by_name.items()}


@dataclass(frozen=True, slots=True)
class PairContestant:
    """A pair on one route, opened anew for each reply.

    `served`: its models in the memory of an Ollama, which unloads them before each reply (but where it `remembers`).
    """

    settings: PairSettings
    environ: Mapping[str, str]
    state: LearnedState
    engine: str
    served: tuple[ModelRef, ...]
    remembers: bool

    @asynccontextmanager
    async def fresh(self, *, again: bool) -> AsyncGenerator[ReplySource, None]:
        self.state.begin(again=again)
        if not self.remembers:
            for model in self.served:
                await unload(model, self.environ)
        for model in self.served:
            if model in self.settings.drafts:  # the token that warms the pair up loads the target alone
                await load(model, self._requests(model), self.environ)
        async with Pair(self.settings, self.environ, self.state.folder) as pair:
            yield pair

    def _requests(self, model: ModelRef) -> RequestTemplate:
        kept = self.settings.keep_alive
        return RequestTemplate(model.model, SamplingOptions(), forwarded_options(self.settings.options), kept)


async def open_contestants(
    settings: PairSettings,
    routes: list[Route],
    against: ModelRef | None,
    environ: Mapping[str, str],
    stack: AsyncExitStack,
) -> Contestants:
    """Look for plain, the pair on each of the routes, and the engine at `against`; `stack` closes what is opened.

    Raises EndpointError where a server or model isn't there, UsageError where a route needs a draft model.
    """
    found = Contestants()
    compared = [Route.PLAIN, *(route for route in routes if route is not Route.PLAIN)]
    await _describe(found, settings, environ)
    if Route.NATIVE in compared:
        await _describe_native(found, settings, environ)
    folder = Path(stack.enter_context(TemporaryDirectory(prefix="specollama-bench-")))
    opening = _Opening(environ, folder)
    for route in compared:
        found.by_name[str(route)] = await opening.side(str(route), _on(settings, route))
    if against is not None:
        found.by_name[AGAINST] = await _open_against(found, against, settings, opening, stack)
    return found


def _on(settings: PairSettings, route: Route) -> PairSettings:
    """The pair on this route. A plain reply by a file opens no draft model."""
    alone = route is Route.PLAIN and isinstance(settings.target, FileRef)
    return replace(settings, drafts=(), route=route) if alone else settings.with_overrides(route=route)


@dataclass(slots=True)
class _Opening:
    """Makes the pairs' sides. `folder`: each side saves its measurements in a folder of its own there."""

    environ: Mapping[str, str]
    folder: Path
    _unloads: dict[tuple[str, str], bool] = field(default_factory=dict)  # by URL and model

    async def side(self, name: str, settings: PairSettings) -> PairContestant:
        """Raises Unreachable."""
        state = self.folder / name
        state.mkdir()
        served = served_models(settings, self.environ)
        engine = next((model.endpoint.url for model in served if model not in settings.drafts), "")
        unloads = [await self._unloaded(model) for model in served]
        return PairContestant(settings, self.environ, LearnedState(state), engine, served, remembers=not all(unloads))

    async def _unloaded(self, model: ModelRef) -> bool:
        """Whether the model's server unloads the model on request."""
        key = (model.endpoint.url, model.model)
        if key not in self._unloads:
            self._unloads[key] = not model.is_scoring_engine and await unload(model, self.environ)
        return self._unloads[key]


def served_models(settings: PairSettings, environ: Mapping[str, str]) -> tuple[ModelRef, ...]:
    """The pair's models that a server has in its memory, on its route: the target first, if it is one."""
    target = settings.target
    here = isinstance(target, FileRef) or _opened_here(settings, environ)
    if settings.route is Route.NATIVE and isinstance(target, ModelRef):
        return (replace(target, endpoint=settings.native),)
    models = [] if here or isinstance(target, FileRef) else [target]
    if settings.route is not Route.PLAIN:
        drafts = (draft for draft in settings.drafts if isinstance(draft, ModelRef))
        models += [draft for draft in drafts if not (here and _in_store(draft, environ))]
    return tuple(models)


def _opened_here(settings: PairSettings, environ: Mapping[str, str]) -> bool:
    """Whether the target that an Ollama has is opened in process."""
    if settings.route is Route.LOCAL:
        return True
    try:
        return settings.route is Route.AUTO and isinstance(target_file(settings, environ), Path)
    except RunError:
        return False


def _in_store(model: ModelRef, environ: Mapping[str, str]) -> bool:
    try:
        return model_store.find_weights(model.model, environ) is not None
    except RunError:
        return False


async def _describe(found: Contestants, settings: PairSettings, environ: Mapping[str, str]) -> None:
    """Look the pair's models up. Raises EndpointError where one isn't there, UsageError for a file that isn't."""
    found.models["target"] = await _described(found, settings.target, environ)
    for number, draft in enumerate(settings.drafts, 1):
        role = "draft" if number == 1 else f"draft {number}"
        found.models[role] = await _described(found, draft, environ)


async def _described(found: Contestants, model: DraftRef, environ: Mapping[str, str]) -> dict[str, Any]:
    if isinstance(model, FileRef):
        return {"name": model.model, "path": str(model.path), "digest": await asyncio.to_thread(_digest, model.path)}
    if isinstance(model, PromptLookup):
        return {"name": str(model)}
    at = model.endpoint
    api = model.api if model.is_scoring_engine else None
    async with OllamaServer(at.url, **at.connection_settings(environ)) as server:
        try:
            known = None if api else await fetch_model_info(server, model.model)
        except (Refused, ModelMissing, BrokenReply):
            if not (api := await detect(at, environ)):
                raise
            known = None
    if known is None:
        found.servers[at.url] = str(api)
        return {"name": model.model, "url": at.url, "digest": ""}
    version = ".".join(str(number) for number in known.version)
    found.servers[at.url] = f"Ollama {version} ({known.engine})"
    quantisation = known.show.details.quantization_level
    return {"name": known.name, "url": at.url, "digest": known.digest, "quantisation": quantisation}


async def _describe_native(found: Contestants, settings: PairSettings, environ: Mapping[str, str]) -> None:
    """Raises Unreachable where the native server isn't there: plain replies would be taken for its own."""
    at = settings.native
    async with OllamaServer(at.url, **at.connection_settings(environ)) as server:
        try:
            found.servers[at.url] = f"Ollama {await server.version()} (drafting by itself)"
        except Unreachable as error:
            raise with_start_advice(error, settings.name) from error


def _digest(file: Path) -> str:
    try:
        with file.open("rb") as content:
            return hashlib.file_digest(content, "sha256").hexdigest()
    except OSError as error:
        raise UsageError(one_line(f"{file}: {error.strerror or error}")) from error


async def _open_against(
    found: Contestants, against: ModelRef, settings: PairSettings, opening: _Opening, stack: AsyncExitStack
) -> Contestant:
    """An Ollama, which answers /api/version, or else a llama-server, which answers /props."""
    at, environ = against.endpoint, opening.environ
    async with OllamaServer(at.url, **at.connection_settings(environ)) as ollama:
        try:
            version = await ollama.version()
        except Unreachable as error:
            raise error.with_advice("is a server running there?") from error
        except EndpointError:
            version = ""
    if version:
        found.models[AGAINST] = await _described(found, against, environ)
        return await opening.side(AGAINST, replace(settings, target=against, drafts=(), route=Route.PLAIN))
    server = await stack.enter_async_context(LlamaServer(at.url, **at.connection_settings(environ)))
    try:
        props = await server.props()
    except (BrokenReply, Refused) as error:
        if isinstance(error, Refused) and error.status in (401, 403):
            raise
        neither = f"{at.url} is neither an Ollama (/api/version) nor a llama-server (/props): {error}"
        raise RunError(neither) from error
    found.servers[at.url] = f"llama-server {props.build_info}".strip()
    found.models[AGAINST] = {"name": props.model_path, "url": at.url, "digest": ""}
    plain = await stack.enter_async_context(Pair(_on(settings, Route.PLAIN), environ, opening.folder))
    return LlamaServerContestant(server, plain, at.url)


@dataclass(frozen=True, slots=True)
class LlamaServerContestant:
    """A llama-server that renders and speculates by itself; it receives the same requests as plain.

    It is somebody else's, and goes on as it is from one reply to the next. `plain` is asked for nothing but its
    sampling options.
    """

    server: LlamaServer
    plain: Pair
    engine: str
    remembers: bool = True

    @asynccontextmanager
    async def fresh(self, *, again: bool) -> AsyncGenerator[ReplySource, None]:
        yield self

    async def reply(self, conversation: ChatInput) -> AsyncGenerator[Event, None]:
        """Text by read of the connection: tokens of one verified draft mostly arrive in one read."""
        options = await self.plain.sampling(conversation)  # as plain's server has them
        prompt = await self.server.render_prompt([message.body() for message in conversation.messages])
        async with aclosing(self.server.complete(prompt, options)) as chunks:
            async for chunk in chunks:
                if chunk.content:
                    yield Text(chunk.content, Origin.PLAIN, chunk.read)
                if chunk.stop:
                    timings = chunk.timings
                    stats = Stats(
                        reason="the engine does as it does",
                        drafted=timings.draft_n,
                        accepted=timings.draft_n_accepted,
                        prompt_eval_count=timings.prompt_n + timings.cache_n,
                        eval_count=timings.predicted_n,
                    )
                    yield Done(chunk.reason, stats)
