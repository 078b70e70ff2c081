"""Route `greedy`: compares the target's own stream with the drafts. Never faster: it measures how well a draft fits."""

from __future__ import annotations

from contextlib import AbstractContextManager, AsyncExitStack, aclosing
from dataclasses import dataclass

from specollama.backends.ollama.server_watch import ServerWatch
from specollama.backends.ollama.target import StreamTarget
from specollama.pairs.decoding import lookahead_for
from specollama.pairs.routes.base import Plan
from specollama.pairs.routes.ollama_plan import OllamaPlan, ServedReply, served_reply
from specollama.pairs.routing import ReplyRoute, RouteFacts
from specollama.pairs.slots import SlotPool, slots_of
from specollama.spec_decode.interfaces import Target
from specollama.spec_decode.lookahead import Lookahead, SpeculationMonitor
from specollama.spec_decode.types import Route


@dataclass(frozen=True, slots=True)
class GreedyPlan(OllamaPlan):
    """Plan of one reply on route `greedy`."""

    reply: ServedReply
    route: Route = Route.GREEDY

    @property
    def first_seed(self) -> int:
        return self.reply.seed

    @property
    def drafts_ahead(self) -> bool:
        return False

    @property
    def uses_lookup(self) -> bool:
        return self.reply.draft is None

    @property
    def lookahead(self) -> Lookahead:
        settings = self.reply.settings
        return lookahead_for(settings, limit=slots_of(settings) - 1 if settings.lookahead == "auto" else None)

    @property
    def monitor(self) -> SpeculationMonitor | None:
        """None: the route is for measuring, whatever its speed."""
        return None

    async def make_target(self, watch: ServerWatch, stack: AsyncExitStack) -> Target:
        reply, limit = self.reply, self.reply.context.sampling.num_predict
        target = StreamTarget(
            reply.target.server,
            reply.target_requests,
            reply.prompt.text,
            limit=limit if limit > 0 else None,
            seed=reply.seed,
        )
        return await stack.enter_async_context(aclosing(target))

    def hold_slots(self, slots: SlotPool) -> AbstractContextManager[None]:
        return slots.plain_reply()


class GreedyRoute(ReplyRoute):
    """Plans replies on route `greedy`. It holds nothing open: the target's server is shared by all routes."""

    async def plan(self, facts: RouteFacts) -> Plan:
        return GreedyPlan(served_reply(facts))
