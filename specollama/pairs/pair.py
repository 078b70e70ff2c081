"""A draft/target pair: its settings, its connections, and the replies that it gives."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Mapping
from contextlib import AsyncExitStack, aclosing
from copy import copy
from pathlib import Path
from time import perf_counter_ns
from typing import TYPE_CHECKING, Self, Unpack

from specollama.backends.ollama.client import OllamaServer
from specollama.backends.ollama.model_info import ModelInfo, context_length
from specollama.config.settings import FileRef, Overrides, PairSettings
from specollama.pairs.decision_log import log_event
from specollama.pairs.feasibility import ReplyContext
from specollama.pairs.reply_planner import ReplyPlanner
from specollama.pairs.request import ReplyInput
from specollama.pairs.routes.base import NotSpeculated, Plan, speculate_or_plain
from specollama.pairs.routes.plain import PlainPlan
from specollama.pairs.routes.scoring import ScoringRoute
from specollama.pairs.routes.table import ROUTES, RouteTable
from specollama.pairs.served_models import ServedModels
from specollama.pairs.tokenizers import TokenizerMatch
from specollama.spec_decode.decode_loop import RoundObserver
from specollama.spec_decode.events import Done, Event, Text
from specollama.spec_decode.types import SamplingOptions

if TYPE_CHECKING:
    from specollama.pairs.routes.local_models import LocalModels


class Pair:
    """A target and its drafters, with open connections. Use it as an async context manager.

    `reply` raises ModelMissing, Unreachable and other EndpointErrors of the target. It raises UnsupportedPair if the
    settings force a route that isn't lossless for the request.
    """

    def __init__(
        self,
        settings: PairSettings,
        environ: Mapping[str, str],
        state: Path | None = None,
        routes: RouteTable = ROUTES,
    ) -> None:
        """`state`: the folder for saved timings and calibration; None: the user's state folder."""
        self.settings = settings
        self._served = ServedModels(settings, environ)
        self._planner = ReplyPlanner(self._served, environ, state, routes)
        self._stack = AsyncExitStack()
        self._observer: RoundObserver | None = None

    async def __aenter__(self) -> Self:
        self._stack.push_async_callback(self._served.close)
        self._stack.push_async_callback(self._planner.close)
        return self

    async def __aexit__(self, *error: object) -> None:
        await self._stack.aclose()

    @property
    def target_server(self) -> OllamaServer:
        """The Ollama server of the target. Raises UnsupportedPair if the target is a file or another engine's model."""
        return self._served.target_server

    @property
    def draft_server(self) -> OllamaServer | None:
        """The Ollama server of the draft model, if there is one."""
        return self._served.draft_server

    @property
    def is_without_ollama(self) -> bool:
        """Whether the target is known not to be on an Ollama server."""
        return isinstance(self.settings.target, FileRef) or self._planner.scoring.api(self.settings) is not None

    def with_overrides(self, **flags: Unpack[Overrides]) -> Pair:
        """Return a copy of the pair with other settings, for one reply. It shares connections and caches.

        Raises UsageError that names the faulty setting.
        """
        pair = copy(self)
        pair.settings = self.settings.with_overrides(**flags)
        return pair

    def with_observer(self, watch: RoundObserver) -> Pair:
        """Return a copy of the pair, for one reply, that calls `watch` after each round."""
        pair = copy(self)
        pair._observer = watch
        return pair

    async def reply(self, request: ReplyInput) -> AsyncGenerator[Event, None]:
        """Yield the events of one reply: a Status, Text, and Done. Close the generator to stop all work."""
        began, first = perf_counter_ns(), 0

        def run(plan: Plan) -> AsyncGenerator[Event, None]:
            return plan.events(self._observer)

        def plain(why: NotSpeculated) -> AsyncGenerator[Event, None]:
            return PlainPlan(why, self.target_server, ReplyContext(self.settings, request).body()).events()

        async with aclosing(speculate_or_plain(lambda: self.make_plan(request), run, plain)) as events:
            async for event in events:
                if isinstance(event, Text):
                    first = first or perf_counter_ns() - began
                if isinstance(event, Done):
                    event.stats.first_token_duration = first
                    event.stats.total_duration = perf_counter_ns() - began
                log_event(event)
                yield event

    async def make_plan(self, request: ReplyInput) -> Plan:
        """Return the plan of a speculated reply. Raises NotSpeculated with the reason to answer plain."""
        return await self._planner.plan(ReplyContext(self.settings, request))

    @property
    def models_in_process(self) -> LocalModels | None:
        """The models that the pair holds in memory here; None if it holds none."""
        return self._planner.local.loaded

    async def unload(self, *, draft: bool = True) -> None:
        """Free the models in this process, and have the draft's server free the draft model where `draft` says so.

        The target's own server isn't asked. Raises EndpointError if the draft's server fails.
        """
        await self._planner.local.unload()
        if draft and self.draft_server and self.settings.draft:
            await self.draft_server.generate({"model": self.settings.draft.model, "prompt": "", "keep_alive": 0})

    async def sampling(self, request: ReplyInput) -> SamplingOptions:
        """Return the sampling options that the target's server would use."""
        target = None if self.is_without_ollama else (await self.model_infos())[0]
        return ReplyContext(self.settings, request, target).sampling

    async def context_length(self) -> int | None:
        """Context length in tokens; None if unknown, for example before the models are loaded."""
        known = self._planner.context_length
        if known or self.is_without_ollama:
            return known
        return await context_length((await self.model_infos())[0])

    async def model_infos(self) -> tuple[ModelInfo, ModelInfo | str]:
        """Return information on target and draft model (or why the draft is unavailable), cached for some seconds."""
        return await self._served.model_infos(self.settings)

    async def tokenizers(self, target: ModelInfo, draft: ModelInfo | None) -> TokenizerMatch:
        """Return the target's tokenizer and whether the draft model shares it, cached by the models' digests."""
        return await self._served.tokenizers(target, draft)

    async def scoring_route(self) -> ScoringRoute | None:
        """The route `scoring`, if another engine serves the target; None for an Ollama server or a file."""
        scoring = self._planner.scoring
        return scoring if await scoring.detect_engine(self.settings) else None
