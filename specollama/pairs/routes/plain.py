"""Route `plain`: the target's own server answers, without speculation."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Callable, Mapping
from contextlib import AbstractContextManager, aclosing
from dataclasses import dataclass
from typing import Any

from specollama.backends.ollama.client import OllamaServer
from specollama.pairs.event_streams import plain_events
from specollama.pairs.routes.base import NotSpeculated, Plan
from specollama.pairs.slots import SlotPool
from specollama.spec_decode.decode_loop import RoundObserver
from specollama.spec_decode.events import Event, Status
from specollama.spec_decode.metrics import Stats
from specollama.spec_decode.types import Route


@dataclass(frozen=True, slots=True)
class PlainPlan(Plan):
    """Plan of one reply of the target's server. `body`: the full request; a chat has `messages`."""

    why: NotSpeculated
    server: OllamaServer
    body: Mapping[str, Any]
    route: Route = Route.PLAIN

    def chunks(self, path: str) -> AsyncGenerator[dict[str, Any], None]:
        """The server's answer as it comes, with all that it holds. `path`: of the API that the request is for."""
        return self.server.forward(path, self._body_with_seed)

    async def events(
        self, observer: RoundObserver | None = None, fair_share: Callable[[], int] | None = None
    ) -> AsyncGenerator[Event, None]:
        """Yield the server's answer. There are no rounds to observe."""
        stats, body = Stats(route=self.route, reason=self.why.reason), self._body_with_seed
        yield Status(on=False, detail=self.why.reason)
        stream = self.server.stream_chat(body) if "messages" in body else self.server.stream_generate(body)
        async with aclosing(stream) as chunks:
            async for event in plain_events(chunks, stats):
                yield event

    def hold_slots(self, slots: SlotPool) -> AbstractContextManager[None]:
        return slots.plain_reply()

    @property
    def _body_with_seed(self) -> dict[str, Any]:
        """The request, with the seed of an attempt that failed."""
        if self.why.seed is None:
            return dict(self.body)
        return {**self.body, "options": {**self.body.get("options", {}), "seed": self.why.seed}}
