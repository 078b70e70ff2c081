"""What is compared: the target alone, the pair on its routes, and perhaps another engine."""

from __future__ import annotations

import asyncio
import hashlib
from collections.abc import AsyncGenerator, Mapping
from contextlib import AsyncExitStack, aclosing
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Protocol

from specollama.backends.facts import describe
from specollama.backends.http import OllamaServer
from specollama.backends.llama_server import LlamaServer
from specollama.config import DraftRef, FileRef, Lookup, ModelRef, PairSettings
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
from specollama.native_route import started
from specollama.pairs import Conversation, Pair
from specollama.scoring.engines import detect
from specollama.stats import Done, Event, Stats, Text
from specollama.types import Origin, Route

PLAIN = str(Route.PLAIN)
AGAINST = "against"


class Side(Protocol):
    """Something that answers a conversation with the events of a reply, like a pair."""

    def reply(self, conversation: Conversation) -> AsyncGenerator[Event, None]: ...


@dataclass(slots=True)
class Sides:
    """All sides, by name, plain first; `models` and `servers` are what the results say of them."""

    sides: dict[str, Side] = field(default_factory=dict)
    models: dict[str, dict[str, Any]] = field(default_factory=dict)
    servers: dict[str, str] = field(default_factory=dict)  # by URL: what runs there, with its version


async def open_sides(
    settings: PairSettings,
    routes: list[Route],
    against: ModelRef | None,
    environ: Mapping[str, str],
    stack: AsyncExitStack,
) -> Sides:
    """Open plain, the pair on each of the routes, and the engine at `against`; `stack` closes them.

    Raises EndpointError where a server or model isn't there, UsageError where a route needs a draft model.
    """
    found = Sides()
    compared = [Route.PLAIN, *(route for route in routes if route is not Route.PLAIN)]
    for route, pair in (await _open_pairs(settings, compared, environ, stack)).items():
        found.sides[str(route)] = pair
    await _describe(found, settings, environ)
    if Route.NATIVE in compared:
        await _describe_native(found, settings, environ)
    if against is not None:
        plain = found.sides[PLAIN]
        assert isinstance(plain, Pair)
        found.sides[AGAINST] = await _open_against(found, against, plain, environ, stack)
    return found


async def _open_pairs(
    settings: PairSettings, routes: list[Route], environ: Mapping[str, str], stack: AsyncExitStack
) -> dict[Route, Pair]:
    """A pair for each route; a target that is a file is opened once for all of them."""
    if not isinstance(settings.target, FileRef):
        pairs = {route: Pair(settings.override(route=route), environ) for route in routes}
        for pair in pairs.values():
            await stack.enter_async_context(pair)
        return pairs
    drafting = next((route for route in routes if route is not Route.PLAIN), Route.PLAIN)
    opened = await stack.enter_async_context(Pair(settings.override(route=drafting), environ))
    return {route: opened.tuned(route=route) for route in routes}


async def _describe(found: Sides, settings: PairSettings, environ: Mapping[str, str]) -> None:
    """Look the pair's models up. Raises EndpointError where one isn't there, UsageError for a file that isn't."""
    found.models["target"] = await _described(found, settings.target, environ)
    for number, draft in enumerate(settings.drafts, 1):
        role = "draft" if number == 1 else f"draft {number}"
        found.models[role] = await _described(found, draft, environ)


async def _described(found: Sides, model: DraftRef, environ: Mapping[str, str]) -> dict[str, Any]:
    if isinstance(model, FileRef):
        return {"name": model.model, "path": str(model.path), "digest": await asyncio.to_thread(_digest, model.path)}
    if isinstance(model, Lookup):
        return {"name": str(model)}
    at = model.endpoint
    api = model.api if model.scored else None
    async with OllamaServer(at.url, **at.reaching(environ)) as server:
        try:
            known = None if api else await describe(server, model.model)
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


async def _describe_native(found: Sides, settings: PairSettings, environ: Mapping[str, str]) -> None:
    """Raises Unreachable where the native server isn't there: plain replies would be taken for its own."""
    at = settings.native
    async with OllamaServer(at.url, **at.reaching(environ)) as server:
        try:
            found.servers[at.url] = f"Ollama {await server.version()} (drafting by itself)"
        except Unreachable as error:
            raise Unreachable(started(str(error), settings.name), url=at.url) from error


def _digest(file: Path) -> str:
    try:
        with file.open("rb") as content:
            return hashlib.file_digest(content, "sha256").hexdigest()
    except OSError as error:
        raise UsageError(one_line(f"{file}: {error.strerror or error}")) from error


async def _open_against(
    found: Sides, against: ModelRef, plain: Pair, environ: Mapping[str, str], stack: AsyncExitStack
) -> Side:
    """An Ollama, which answers /api/version, or else a llama-server, which answers /props."""
    at = against.endpoint
    async with OllamaServer(at.url, **at.reaching(environ)) as ollama:
        try:
            version = await ollama.version()
        except Unreachable as error:
            advice = str(error).replace("is Ollama running there? (`ollama serve`)", "is a server running there?")
            raise Unreachable(advice, url=at.url) from error
        except EndpointError:
            version = ""
    if version:
        found.models[AGAINST] = await _described(found, against, environ)
        alone = replace(plain.settings, target=against, drafts=(), route=Route.PLAIN)
        return await stack.enter_async_context(Pair(alone, environ))
    server = await stack.enter_async_context(LlamaServer(at.url, **at.reaching(environ)))
    try:
        props = await server.props()
    except (BrokenReply, Refused) as error:
        if isinstance(error, Refused) and error.status in (401, 403):
            raise
        neither = f"{at.url} is neither an Ollama (/api/version) nor a llama-server (/props): {error}"
        raise RunError(neither) from error
    found.servers[at.url] = f"llama-server {props.build_info}".strip()
    found.models[AGAINST] = {"name": props.model_path, "url": at.url, "digest": ""}
    return LlamaServerSide(server, plain)


@dataclass(frozen=True, slots=True)
class LlamaServerSide:
    """A llama-server that renders and speculates by itself, asked for what plain is asked for."""

    server: LlamaServer
    plain: Pair

    async def reply(self, conversation: Conversation) -> AsyncGenerator[Event, None]:
        """Text by read of the connection: what its engine settled at once mostly comes in one."""
        options = await self.plain.sampling(conversation)  # as plain's server has them
        prompt = await self.server.prompt_of([message.body() for message in conversation.messages])
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
