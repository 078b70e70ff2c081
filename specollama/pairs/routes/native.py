"""Route `native`: the target's own engine drafts and verifies, on a server that `specollama native` starts.

Accepted draft tokens carry no log-probabilities there (llama.cpp b10488). This shows whether a reply was speculated.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, AsyncIterator, Callable, Mapping
from contextlib import aclosing
from dataclasses import dataclass
from shlex import quote
from typing import Any

from specollama.backends.ollama.client import OllamaServer
from specollama.backends.ollama.schema import has_text
from specollama.errors import EndpointError, Unreachable
from specollama.pairs.event_streams import plain_events
from specollama.pairs.routes.base import NotSpeculated, Plan
from specollama.pairs.routing import ReplyRoute, RouteFacts
from specollama.spec_decode.decode_loop import RoundObserver
from specollama.spec_decode.events import Done, Event, Status
from specollama.spec_decode.metrics import Stats
from specollama.spec_decode.types import Route

_ENOUGH = 16  # tokens: a shorter reply gets no notice that nothing was drafted


@dataclass(frozen=True, slots=True)
class NativePlan(Plan):
    """Plan of one reply of a server that drafts itself. `body`: the full request; a chat has `messages`."""

    server: OllamaServer
    body: Mapping[str, Any]
    route: Route = Route.NATIVE

    async def events(
        self, observer: RoundObserver | None = None, fair_share: Callable[[], int] | None = None
    ) -> AsyncGenerator[Event, None]:
        """Yield the reply. If no token was drafted, add a notice at its end. The server doesn't show its rounds."""
        stats = Stats(route=self.route)
        yield Status(on=True, detail=f"native, by {self.server.url}")
        body = {**self.body, "logprobs": True}
        stream = self.server.stream_chat if "messages" in body else self.server.stream_generate
        count = _DraftCounter()
        async with aclosing(stream(body)) as chunks, aclosing(plain_events(count.counting(chunks), stats)) as events:
            async for event in events:
                if isinstance(event, Done) and count.shown >= _ENOUGH and not count.hidden:
                    stats.notices.append(f"nothing was drafted: {self.server.url} doesn't speculate, or rarely agrees")
                yield event


@dataclass(slots=True)
class _DraftCounter:
    """Counts tokens with (`shown`) and without (`hidden`) log-probabilities."""

    shown: int = 0
    hidden: int = 0

    async def counting(self, chunks: AsyncIterator[Any]) -> AsyncGenerator[Any, None]:
        async for chunk in chunks:
            shown = len(chunk.logprobs or ())
            self.shown += shown
            self.hidden += not shown and has_text(chunk)
            yield chunk


class NativeRoute(ReplyRoute):
    """Connects to the native server at the first reply and holds the connection until `close`."""

    def __init__(self, environ: Mapping[str, str]) -> None:
        self._environ = environ
        self._server: OllamaServer | None = None

    async def close(self) -> None:
        if self._server:
            await self._server.aclose()
            self._server = None

    async def plan(self, facts: RouteFacts) -> Plan:
        """Plan a reply of the native server. Raises NotSpeculated if it doesn't answer."""
        settings = facts.context.settings
        if self._server is None:
            self._server = OllamaServer(settings.native.url, **settings.native.connection_settings(self._environ))
        try:
            await self._server.version()
        except EndpointError as error:
            raise NotSpeculated(f"native: {with_start_advice(error, settings.name)}") from error
        return NativePlan(self._server, facts.context.body())


def with_start_advice(error: EndpointError, pair: str | None) -> EndpointError:
    """The error; one of a server that can't be reached advises the command that starts the native server."""
    if not isinstance(error, Unreachable):
        return error
    start = f"start it with `specollama native {quote(pair)}`" if pair else "is `specollama native` running?"
    return error.with_advice(start)
