"""Plans each reply of a pair: finds out the facts that the choice of a route needs, and lets that route plan."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from contextlib import AsyncExitStack
from dataclasses import replace
from pathlib import Path

from specollama.backends.ollama.model_info import ModelInfo, context_length
from specollama.backends.ollama.slot_probe import probe_pair
from specollama.errors import EndpointError, Unreachable
from specollama.pairs.feasibility import ReplyContext
from specollama.pairs.prompt import NoPrompt, render_on_server
from specollama.pairs.routes.base import NotSpeculated, Plan
from specollama.pairs.routes.local import LocalRoute
from specollama.pairs.routes.scoring import ScoringRoute
from specollama.pairs.routes.table import RouteResources, RouteTable
from specollama.pairs.routing import MissingFact, RouteFacts, ServedPrompt, choose_route
from specollama.pairs.served_drafters import request_template
from specollama.pairs.served_models import ServedModels


class ReplyPlanner:
    """Holds a pair's routes, open for all replies. `state`: the folder for saved measurements; None: the user's."""

    def __init__(
        self, served: ServedModels, environ: Mapping[str, str], state: Path | None, routes: RouteTable
    ) -> None:
        self.scoring = ScoringRoute(environ, state, served)
        self._served = served
        self.local = LocalRoute(environ, state, served)
        shared = RouteResources(environ, self.local, self.scoring)
        self._routes = {name: open_route(shared) for name, open_route in routes.items()}
        self._measuring = asyncio.Lock()

    async def close(self) -> None:
        """Close all routes, even if one fails to close."""
        async with AsyncExitStack() as stack:
            for route in {*self._routes.values(), self.local, self.scoring}:
                stack.push_async_callback(route.close)

    @property
    def context_length(self) -> int | None:
        """Context length in tokens, as an opened model or an engine has it; None before the first reply."""
        return self.local.context_length or self.scoring.context_length

    async def plan(self, context: ReplyContext) -> Plan:
        """Return the plan of a speculated reply.

        Raises NotSpeculated with the reason to answer plain, UnsupportedPair if the settings force what can't be
        lossless, and RunError.
        """
        facts = RouteFacts(context, engine=self.scoring.api(context.settings))
        find_out: Mapping[MissingFact, Callable[[RouteFacts], Awaitable[RouteFacts]]] = {
            MissingFact.TARGET: self._with_target,
            MissingFact.LOCAL: self._with_local,
            MissingFact.TOKENIZERS: self._with_tokenizers,
            MissingFact.PROMPT: self._with_prompt,
            MissingFact.PROBE: self._with_probe,
        }
        while (choice := choose_route(facts)).missing:
            facts = await find_out[choice.missing](facts)
        if choice.planned_by not in self._routes:
            raise NotSpeculated(choice.reason)
        return await self._routes[choice.planned_by].plan(facts)

    async def _with_target(self, facts: RouteFacts) -> RouteFacts:
        settings = facts.context.settings
        try:
            target, draft = await self._served.model_infos(settings)
        except Unreachable:
            plan = await self.local.plan_while_unreachable(facts.context)
            if plan is None:
                raise
            return replace(facts, local=plan)
        except EndpointError:
            engine = await self.scoring.detect_engine(settings)
            if engine is None:
                raise
            return replace(facts, engine=engine)
        return replace(facts, context=replace(facts.context, target=target), draft=draft)

    async def _with_local(self, facts: RouteFacts) -> RouteFacts:
        return replace(facts, local=await self.local.plan_or_reason(facts.context, facts.draft))

    async def _with_tokenizers(self, facts: RouteFacts) -> RouteFacts:
        return replace(facts, tokenizers=await self._served.tokenizers(_target(facts), facts.draft_model))

    async def _with_prompt(self, facts: RouteFacts) -> RouteFacts:
        target, exact = _target(facts), facts.tokenizers.target if facts.tokenizers else None
        text = await render_on_server(facts.context, target, exact)
        if isinstance(text, NoPrompt):
            return replace(facts, prompt=text.reason)
        tokens = len(exact.encode(text)) if exact else len(text) // 4
        return replace(facts, prompt=ServedPrompt(text, tokens, await context_length(target)))

    async def _with_probe(self, facts: RouteFacts) -> RouteFacts:
        if self._measuring.locked():  # by another reply; two concurrent probes would distort each other
            return replace(facts, probe="the pair is being measured")
        target, draft, context = _target(facts), facts.draft_model, facts.context
        requests = request_template(draft, context) if draft else None
        async with self._measuring:
            return replace(facts, probe=await probe_pair(request_template(target, context), target, requests, draft))


def _target(facts: RouteFacts) -> ModelInfo:
    """The target as its server describes it, which was found out first."""
    assert facts.context.target is not None
    return facts.context.target
