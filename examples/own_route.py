"""A route of one's own: prompt lookup drafts, and the target's own stream verifies. It takes the place of `greedy`.

python examples/own_route.py http://127.0.0.1:11434 qwen2.5-coder:1.5b "Name the planets."
"""

import asyncio
import os
import sys
from collections.abc import AsyncGenerator
from contextlib import aclosing
from dataclasses import dataclass

from specollama.backends.ollama.schema import Message
from specollama.backends.ollama.target import StreamTarget
from specollama.backends.prompt_lookup import TextLookupDrafter
from specollama.config.endpoints import Endpoint
from specollama.config.settings import ModelRef, PairSettings, PromptLookup
from specollama.pairs.pair import Pair
from specollama.pairs.request import ChatInput
from specollama.pairs.routes.base import Plan
from specollama.pairs.routes.ollama_plan import ServedReply, served_reply
from specollama.pairs.routes.table import ROUTES
from specollama.pairs.routing import ReplyRoute, RouteFacts
from specollama.spec_decode.decode_loop import SpeculativeDecoder
from specollama.spec_decode.events import Event, Status
from specollama.spec_decode.lookahead import FixedLookahead
from specollama.spec_decode.metrics import Stats
from specollama.spec_decode.types import Route

# The route


@dataclass(frozen=True)
class LookupPlan(Plan):
    reply: ServedReply
    route: Route = Route.GREEDY

    async def events(self, observer=None, fair_share=None) -> AsyncGenerator[Event, None]:
        reply, options = self.reply, self.reply.context.sampling
        target = StreamTarget(
            reply.target.server, reply.target_requests, reply.prompt.text, limit=None, seed=reply.seed
        )
        stats = Stats(route=self.route, prompt_eval_count=reply.prompt.tokens)
        drafter, lookahead = TextLookupDrafter(), FixedLookahead(4)
        yield Status(on=True, detail=f"my route, lookahead {lookahead}")
        decoder = SpeculativeDecoder(reply.prompt.text, target, drafter, lookahead, reply.rule, options, stats)
        async with aclosing(target), aclosing(decoder.events()) as events:
            async for event in events:
                yield event


class LookupRoute(ReplyRoute):
    async def plan(self, facts: RouteFacts) -> Plan:
        return LookupPlan(served_reply(facts))


MY_ROUTES = {**ROUTES, Route.GREEDY: lambda shared: LookupRoute()}  # its line in the table

# A reply on it


async def run(url: str, model: str, question: str) -> None:
    target = ModelRef(model, Endpoint(url, "the command line"))
    settings = PairSettings(None, target, (PromptLookup.LOOKUP,), route=Route.GREEDY, options={"temperature": 0})
    request = ChatInput([Message(role="user", content=question)])
    async with Pair(settings, os.environ, routes=MY_ROUTES) as pair, aclosing(pair.reply(request)) as events:
        async for event in events:
            print(getattr(event, "text", f"[{event}]\n" if isinstance(event, Status) else "\n"), end="", flush=True)


def main(url: str, model: str, question: str) -> None:
    asyncio.run(run(url, model, question))


if __name__ == "__main__":
    main(*sys.argv[1:])
