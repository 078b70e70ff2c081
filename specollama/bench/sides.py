"""What is compared: the target alone, the pair on its routes, and perhaps another engine."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Mapping
from contextlib import AsyncExitStack, aclosing
from dataclasses import dataclass, field, replace
from typing import Any, Protocol

from specollama.backends.http import OllamaServer
from specollama.backends.llama_server import LlamaServer
from specollama.config import FileRef, ModelRef, PairSettings
from specollama.errors import BrokenReply, EndpointError, Refused, RunError, Unreachable
from specollama.pairs import Conversation, Pair
from specollama.stats import Done, Event, Stats, Text
from specollama.types import Origin, Route, SamplingOptions

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
    for route in [Route.PLAIN, *(route for route in routes if route is not Route.PLAIN)]:
        pair = await stack.enter_async_context(Pair(settings.override(route=route), environ))
        found.sides[str(route)] = pair
        await _describe_models(found, pair)
    if against is not None:
        plain = found.sides[PLAIN]
        assert isinstance(plain, Pair)
        found.sides[AGAINST] = await _open_against(found, against, plain, environ, stack)
    return found


async def _describe_models(found: Sides, pair: Pair, roles: tuple[str, str] = ("target", "draft")) -> None:
    for role, chosen in zip(roles, (pair.settings.target, *pair.settings.drafts), strict=False):
        if isinstance(chosen, FileRef):
            size = await asyncio.to_thread(lambda path: path.stat().st_size if path.exists() else 0, chosen.path)
            found.models[role] = {"name": chosen.model, "path": str(chosen.path), "size": size}
    if isinstance(pair.settings.target, FileRef):
        return
    for role, model in zip(roles, await pair.models(), strict=True):
        if isinstance(model, str):
            continue
        url = model.server.url
        version = ".".join(str(number) for number in model.version)
        found.servers[url] = f"Ollama {version} ({model.engine})"
        quantisation = model.show.details.quantization_level
        found.models[role] = {"name": model.name, "url": url, "digest": model.digest, "quantisation": quantisation}


async def _open_against(
    found: Sides, against: ModelRef, plain: Pair, environ: Mapping[str, str], stack: AsyncExitStack
) -> Side:
    """An Ollama, which answers /api/version, or else a llama-server, which answers /props."""
    at = against.endpoint
    where = {
        "token": at.token(environ),
        "source": at.source,
        "connect_timeout": at.connect_timeout,
        "idle_timeout": at.idle_timeout,
    }
    async with OllamaServer(at.url, **where) as ollama:  # type: ignore[arg-type]
        try:
            version = await ollama.version()
        except Unreachable as error:
            advice = str(error).replace("is Ollama running there? (`ollama serve`)", "is a server running there?")
            raise Unreachable(advice, url=at.url) from error
        except EndpointError:
            version = ""
    if version:
        alone = await stack.enter_async_context(
            Pair(replace(plain.settings, target=against, drafts=(), route=Route.PLAIN), environ)
        )
        await _describe_models(found, alone, (AGAINST, ""))
        return alone
    server = await stack.enter_async_context(LlamaServer(at.url, **where))  # type: ignore[arg-type]
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
        options = await self._options(conversation)
        prompt = await self.server.render([message.body() for message in conversation.messages])
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

    async def _options(self, conversation: Conversation) -> SamplingOptions:
        """As plain's server has them after its model's own parameters."""
        return await self.plain.sampling(conversation)
