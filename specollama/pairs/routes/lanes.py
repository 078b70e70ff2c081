"""Route `lanes`: the target's Ollama server verifies each position of a draft by a request for one token."""

from __future__ import annotations

from contextlib import AbstractContextManager, AsyncExitStack
from dataclasses import dataclass

from specollama.backends.ollama.server_watch import MonitoredTarget, ServerWatch
from specollama.backends.ollama.target import ParallelTarget
from specollama.pairs.decoding import lookahead_for, monitor_for
from specollama.pairs.routes.base import Plan
from specollama.pairs.routes.ollama_plan import OllamaPlan, ServedReply, served_reply
from specollama.pairs.routing import ReplyRoute, RouteFacts
from specollama.pairs.slots import SlotPool
from specollama.spec_decode.acceptance import position_seed
from specollama.spec_decode.interfaces import Target
from specollama.spec_decode.lookahead import Lookahead, SpeculationMonitor
from specollama.spec_decode.retokenization import CountedPath, ExactPath
from specollama.spec_decode.types import Route


@dataclass(frozen=True, slots=True)
class LanesPlan(OllamaPlan):
    """Plan of one reply on route `lanes`."""

    reply: ServedReply
    route: Route = Route.LANES

    @property
    def first_seed(self) -> int:
        return position_seed(self.reply.seed, 0)

    @property
    def drafts_ahead(self) -> bool:
        return self.reply.runs_ahead

    @property
    def uses_lookup(self) -> bool:
        return self.reply.settings.uses_lookup

    @property
    def lookahead(self) -> Lookahead:
        slots = self.reply.settings.lanes
        return lookahead_for(self.reply.settings, limit=None if slots is None else max(1, slots - 1))

    @property
    def monitor(self) -> SpeculationMonitor | None:
        return monitor_for(self.reply.settings, self.reply.context.sampling, self.reply.plain_seconds)

    async def make_target(self, watch: ServerWatch, stack: AsyncExitStack) -> Target:
        reply, exact = self.reply, self.reply.tokenizers.target
        rows = ParallelTarget(
            reply.target.server,
            reply.target_requests,
            ExactPath(reply.prompt.text, exact) if exact else CountedPath(reply.prompt.text),
            rule=reply.rule,
            seed=reply.seed,
            context_length=reply.prompt.context_length,
            row_tokens=reply.probe.row_tokens if reply.probe else reply.target.row_tokens,
            note=watch.note_target,
        )
        return MonitoredTarget(rows, watch)

    def why_busy(self, slots: SlotPool) -> str | None:
        return None if slots.has_room else "the target's lanes are taken by other replies"

    def hold_slots(self, slots: SlotPool) -> AbstractContextManager[None]:
        return slots.speculated_reply()


class LanesRoute(ReplyRoute):
    """Plans replies on route `lanes`. It holds nothing open: the target's server is shared by all routes."""

    async def plan(self, facts: RouteFacts) -> Plan:
        return LanesPlan(served_reply(facts))
