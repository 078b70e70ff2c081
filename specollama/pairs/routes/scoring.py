"""Route `scoring`: detects the engine, plans each reply, and runs the decoding loop over engine and drafters."""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import AsyncGenerator, Mapping
from contextlib import AsyncExitStack, aclosing
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

from specollama.backends.engines.base import DrawSettings, Engine, EngineInfo
from specollama.backends.engines.detect import CLIENTS, detect, open_engine
from specollama.backends.engines.target import ScoringTarget
from specollama.backends.ollama.model_info import ModelInfo
from specollama.config.settings import ModelRef, PairSettings
from specollama.errors import UnsupportedPair
from specollama.pairs.feasibility import ReplyContext, request_needs_ollama, why_drafting_is_off
from specollama.pairs.routes.scoring_feasibility import (
    EnginePrompt,
    check_options,
    max_rows,
    needs_request_per_row,
    request_pattern,
    why_not_faster,
    why_not_scored,
)
from specollama.pairs.routes.scoring_prompt import prompt_for
from specollama.spec_decode.calibration import MAX_DRAFT_TOKENS
from specollama.spec_decode.decode_loop import RoundObserver, SpeculativeDecoder
from specollama.spec_decode.draft_ahead import OverlappedTarget
from specollama.spec_decode.events import Event, Status
from specollama.spec_decode.lookahead import SpeculationMonitor
from specollama.spec_decode.metrics import Stats
from specollama.spec_decode.planner import report_reply_end
from specollama.spec_decode.types import Route, SamplingOptions, ServerApi

if TYPE_CHECKING:
    from specollama.pairs.routes.scoring_models import ScoringModels


@dataclass(frozen=True, slots=True)
class ScoringPlan:
    """Plan of one reply on an engine. It is speculated, or plain if `reason` is set."""

    models: ScoringModels
    prompt: EnginePrompt
    context: ReplyContext
    reason: str = ""
    raw: bool = False
    notices: tuple[str, ...] = ()

    @property
    def route(self) -> Route:
        return Route.PLAIN if self.reason else Route.SCORING


class ScoringRoute:
    """Connects to the engine at the first reply and holds the connection until `close`.

    `state`: the folder for saved timings and calibration; None: the user's state folder.
    """

    def __init__(self, environ: Mapping[str, str], state: Path | None = None) -> None:
        self._environ = environ
        self._state = state
        self._stack = AsyncExitStack()
        self._opening = asyncio.Lock()
        self._found: ServerApi | None = None
        self._engine: Engine | None = None
        self._pairs: dict[bool, ScoringModels] = {}  # by whether the pair drafts: a plain reply loads no draft model

    async def close(self) -> None:
        for pair in self._pairs.values():
            await pair.close()
        self._pairs.clear()
        await self._stack.aclose()

    @property
    def context_length(self) -> int | None:
        """Context length in tokens; None before the first reply, or if the engine doesn't report it."""
        return next((pair.facts.context_length for pair in self._pairs.values()), None)

    def api(self, settings: PairSettings) -> ServerApi | None:
        """API of the target's engine, configured or detected earlier; None for an Ollama server."""
        target = settings.target
        if not isinstance(target, ModelRef):
            return None
        return target.api if target.is_scoring_engine else self._found

    async def detect_engine(self, settings: PairSettings) -> ServerApi | None:
        """Detect the API of the target's engine, if the configuration doesn't name it; None for an Ollama server."""
        if self.api(settings) is None and isinstance(settings.target, ModelRef) and settings.target.api is None:
            self._found = await detect(settings.target.endpoint, self._environ)
        return self.api(settings)

    async def open_models(self, settings: PairSettings, served: ModelInfo | None = None) -> ScoringModels:
        """Return the engine and its drafters. `served`: a draft model on an Ollama server.

        Raises EndpointError if a request to the engine fails, RunError if a draft's file can't be loaded.
        """
        target, api = settings.target, self.api(settings)
        assert isinstance(target, ModelRef)
        assert api is not None, "it was asked for before"
        from specollama.pairs.routes.scoring_models import (
            open_scoring_models,  # here, since numpy comes with it: 0.1 s at each start
        )

        drafting = why_drafting_is_off(settings) is None
        async with self._opening:
            if drafting not in self._pairs:
                engine, given = (
                    await self._open_engine(target, api),
                    settings if drafting else replace(settings, drafts=()),
                )
                self._pairs[drafting] = await open_scoring_models(
                    engine, CLIENTS[api].kind.name, target, given, self._state
                )
            pair = self._pairs[drafting]
            if (
                drafting and served and pair.served_draft is None
            ):  # its server may have been down at the earlier attempt
                await pair.add_served_draft(served)
        return pair

    async def engine_info(self, settings: PairSettings) -> tuple[str, EngineInfo]:
        """Return the engine's name and its reported properties. Loads no drafter. Raises EndpointError."""
        target, api = settings.target, self.api(settings)
        assert isinstance(target, ModelRef)
        assert api is not None, "it was asked for before"
        async with self._opening:
            return CLIENTS[api].kind.name, await (await self._open_engine(target, api)).info()

    async def _open_engine(self, target: ModelRef, api: ServerApi) -> Engine:
        if self._engine is None:
            self._engine = await open_engine(target, api, self._environ, self._stack)
        return self._engine

    async def plan(self, context: ReplyContext, draft: ModelInfo | str) -> ScoringPlan:
        """Plan a reply. `draft`: the draft model on a server, or the reason there is none.

        Raises UnsupportedPair if the engine can't serve the request, and EndpointError.
        """
        settings, ask, sampling = context.settings, context.request, context.sampling
        pair = await self.open_models(settings, draft if isinstance(draft, ModelInfo) else None)
        if obstacle := request_needs_ollama(context):
            raise UnsupportedPair(f"{obstacle} isn't passed on to {pair.engine_name}, which serves {settings.target}")
        check_options(pair.engine.capabilities, sampling, settings.rule, pair.engine_name)
        prompted = await prompt_for(ask, pair.engine, pair.engine_name, pair.render_with_draft)
        reason = await self._why_plain(settings, pair, sampling, prompted, draft)
        missed = (draft,) if isinstance(draft, str) and settings.draft and not reason else ()
        return ScoringPlan(pair, prompted, context, reason, ask.raw, (*missed, *pair.pop_notices()))

    async def _why_plain(
        self,
        settings: PairSettings,
        pair: ScoringModels,
        sampling: SamplingOptions,
        prompted: EnginePrompt,
        draft: ModelInfo | str,
    ) -> str:
        """The reason not to draft; "" to draft."""
        can, facts = pair.engine.capabilities, pair.facts
        if reason := why_not_scored(settings, can, sampling, facts, pair.engine_name) or prompted.reason:
            return reason
        if not pair.can_draft:
            return draft if isinstance(draft, str) else "no draft model"
        if pair.is_busy:
            return "the draft model is busy with another reply"
        if settings.lookahead != "auto":
            return ""
        costs = await pair.profile(sampling)
        worth = settings.route is Route.SCORING
        return "" if worth else why_not_faster(costs, can, facts, len(prompted.tokens), sampling)


async def scoring_events(
    plan: ScoringPlan, settings: PairSettings, watch: RoundObserver | None = None
) -> AsyncGenerator[Event, None]:
    """Yield the events of a planned reply. Close it to stop. `watch` is called after each round."""
    pair = plan.models
    async with AsyncExitStack() as stack:
        if not plan.reason:
            await stack.enter_async_context(pair.hold())
        speculation = await _make_decoder(plan, settings, stack)
        speculation.observer = watch
        if plan.reason:
            events = speculation.plain_events("; ".join([plan.reason, *plan.notices]))
        else:
            how = request_pattern(pair.engine.capabilities, plan.context.sampling)
            words = [f"scoring, {pair.engine_name}, {how}, lookahead {speculation.lookahead}", *plan.notices]
            yield Status(on=True, detail="; ".join(words))
            events = speculation.events()
        async with aclosing(events):
            async for event in events:
                report_reply_end(speculation.lookahead, event)
                yield event


async def _make_decoder(plan: ScoringPlan, settings: PairSettings, stack: AsyncExitStack) -> SpeculativeDecoder:
    pair, sampling, prompted = plan.models, plan.context.sampling, plan.prompt
    can, tokens = pair.engine.capabilities, list(prompted.tokens)
    if pair.drafters.lookup and not plan.reason:
        await pair.token_texts.fetch(tokens)
    rows = min(max_rows(can, pair.facts, sampling), settings.lanes or MAX_DRAFT_TOKENS + 1)
    planned = pair.prepare_reply(settings, plan.context, tokens, rows - 1)
    for ahead in planned.ahead:
        await stack.enter_async_context(aclosing(ahead))
    target = ScoringTarget(
        pair.engine,
        tokens,
        DrawSettings(sampling, _seed(sampling, must=can.needs_seed)),
        pair.token_texts,
        prompt_tokens=len(tokens),
        messages=prompted.messages,
        context_length=pair.facts.context_length,
        by_row=needs_request_per_row(can, sampling),
    )
    return SpeculativeDecoder(
        prompt=prompted.text,
        target=OverlappedTarget(target, planned.ahead),
        drafter=planned.drafter,
        lookahead=planned.lookahead,
        rule=planned.rule,
        options=sampling,
        stats=Stats(route=plan.route, prompt_eval_count=len(tokens)),
        monitor=_monitor_for(pair, settings, sampling),
    )


def _seed(sampling: SamplingOptions, *, must: bool) -> int | None:
    """The base of the position seeds; None at temperature 0, where sampling is deterministic."""
    if sampling.greedy:
        return None
    return secrets.randbits(31) if must and sampling.seed is None else sampling.seed


def _monitor_for(pair: ScoringModels, settings: PairSettings, sampling: SamplingOptions) -> SpeculationMonitor | None:
    """Monitor that stops slow speculation; None if the lookahead is forced, or if a seed must reproduce the reply."""
    if settings.lookahead != "auto" or (sampling.seed is not None and not sampling.greedy):
        return None
    known = pair.known_profile(sampling)
    return SpeculationMonitor(known.plain if known and settings.route is Route.AUTO else None)
