"""Route `scoring`: detects the engine, plans each reply, and runs the decoding loop over engine and drafters."""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import AsyncGenerator, Callable, Mapping
from contextlib import AbstractContextManager, AsyncExitStack, aclosing, nullcontext
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

from specollama.backends.engines.base import DrawSettings, Engine, EngineInfo
from specollama.backends.engines.detect import CLIENTS, detect, open_engine
from specollama.backends.engines.target import ScoringTarget
from specollama.backends.ollama.model_info import ModelInfo
from specollama.config.settings import ModelRef, PairSettings
from specollama.errors import UnsupportedPair
from specollama.pairs.decoding import monitor_for
from specollama.pairs.feasibility import BUSY, ReplyContext, request_needs_ollama, why_drafting_is_off
from specollama.pairs.routes.base import Plan
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
from specollama.pairs.routing import ReplyRoute, RouteFacts
from specollama.pairs.served_models import ServedModels
from specollama.pairs.slots import SlotPool
from specollama.spec_decode.calibration import MAX_DRAFT_TOKENS
from specollama.spec_decode.decode_loop import RoundObserver, SpeculativeDecoder
from specollama.spec_decode.draft_ahead import OverlappedTarget
from specollama.spec_decode.events import Event, Status
from specollama.spec_decode.metrics import Stats
from specollama.spec_decode.planner import report_reply_end
from specollama.spec_decode.types import Route, SamplingOptions, ServerApi

if TYPE_CHECKING:
    from specollama.pairs.routes.scoring_models import ScoringModels


@dataclass(frozen=True, slots=True)
class ScoringPlan(Plan):
    """Plan of one reply on an engine. It is speculated, or plain if `reason` is set."""

    models: ScoringModels
    prompt: EnginePrompt
    context: ReplyContext
    reason: str = ""
    notices: tuple[str, ...] = ()

    @property
    def route(self) -> Route:
        return Route.PLAIN if self.reason else Route.SCORING

    async def events(
        self, observer: RoundObserver | None = None, fair_share: Callable[[], int] | None = None
    ) -> AsyncGenerator[Event, None]:
        """Yield the reply. If it is speculated, it waits until no other reply drafts with the loaded models."""
        models = self.models
        async with AsyncExitStack() as stack:
            if not self.reason:
                await stack.enter_async_context(models.hold())
            decoder = await _make_decoder(self, stack)
            decoder.observer = observer
            if self.reason:
                events = decoder.plain_events("; ".join([self.reason, *self.notices]))
            else:
                pattern = request_pattern(models.engine.capabilities, self.context.sampling)
                details = [f"scoring, {models.engine_name}, {pattern}, lookahead {decoder.lookahead}", *self.notices]
                yield Status(on=True, detail="; ".join(details))
                events = decoder.events()
            async with aclosing(events):
                async for event in events:
                    report_reply_end(decoder.lookahead, event)
                    yield event

    def hold_slots(self, slots: SlotPool) -> AbstractContextManager[None]:
        return slots.plain_reply() if self.reason else nullcontext()


class ScoringRoute(ReplyRoute):
    """Connects to the engine at the first reply and holds the connection until `close`.

    `state`: the folder for saved timings and calibration; None: the user's state folder. `served`: the pair's models on
    servers, of which a draft model may draft; None: only models that are opened here draft.
    """

    def __init__(
        self, environ: Mapping[str, str], state: Path | None = None, served: ServedModels | None = None
    ) -> None:
        self._environ = environ
        self._state = state
        self._served = served
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
        assert api is not None, "the API was detected earlier"
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
        assert api is not None, "the API was detected earlier"
        async with self._opening:
            return CLIENTS[api].kind.name, await (await self._open_engine(target, api)).info()

    async def _open_engine(self, target: ModelRef, api: ServerApi) -> Engine:
        if self._engine is None:
            self._engine = await open_engine(target, api, self._environ, self._stack)
        return self._engine

    async def plan(self, facts: RouteFacts) -> Plan:
        """Plan a reply. Raises UnsupportedPair if the engine can't serve the request, and EndpointError."""
        context, settings, sampling = facts.context, facts.context.settings, facts.context.sampling
        draft = await self._served.draft_info(settings) if self._served else "no draft model"
        models = await self.open_models(settings, draft if isinstance(draft, ModelInfo) else None)
        if obstacle := request_needs_ollama(context):
            raise UnsupportedPair(f"{obstacle} isn't passed on to {models.engine_name}, which serves {settings.target}")
        check_options(models.engine.capabilities, sampling, settings.rule, models.engine_name)
        prompt = await prompt_for(context.request, models.engine, models.engine_name, models.render_with_draft)
        reason = await self._why_plain(settings, models, sampling, prompt, draft)
        missing = (draft,) if isinstance(draft, str) and settings.draft and not reason else ()
        return ScoringPlan(models, prompt, context, reason, (*missing, *models.pop_notices()))

    async def _why_plain(
        self,
        settings: PairSettings,
        models: ScoringModels,
        sampling: SamplingOptions,
        prompt: EnginePrompt,
        draft: ModelInfo | str,
    ) -> str:
        """The reason not to draft; "" to draft."""
        can, info = models.engine.capabilities, models.facts
        if reason := why_not_scored(settings, can, sampling, info, models.engine_name) or prompt.reason:
            return reason
        if not models.can_draft:
            return draft if isinstance(draft, str) else "no draft model"
        if models.is_busy:
            return BUSY
        if settings.lookahead != "auto":
            return ""
        costs = await models.profile(sampling)
        if settings.route is Route.SCORING:
            return ""
        return why_not_faster(costs, can, info, len(prompt.tokens), sampling)


async def _make_decoder(plan: ScoringPlan, stack: AsyncExitStack) -> SpeculativeDecoder:
    """Create the decoder of a reply; `stack` closes its drafters."""
    models, settings, sampling, prompt = plan.models, plan.context.settings, plan.context.sampling, plan.prompt
    can, tokens = models.engine.capabilities, list(prompt.tokens)
    if models.drafters.lookup and not plan.reason:
        await models.token_texts.fetch(tokens)
    rows = min(max_rows(can, models.facts, sampling), settings.lanes or MAX_DRAFT_TOKENS + 1)
    drafting = models.prepare_reply(plan.context, tokens, rows - 1)
    for ahead in drafting.ahead:
        await stack.enter_async_context(aclosing(ahead))
    target = ScoringTarget(
        models.engine,
        tokens,
        DrawSettings(sampling, _seed(sampling, must=can.needs_seed)),
        models.token_texts,
        prompt_tokens=len(tokens),
        messages=prompt.messages,
        context_length=models.facts.context_length,
        by_row=needs_request_per_row(can, sampling),
    )
    known = models.known_profile(sampling)
    return SpeculativeDecoder(
        prompt=prompt.text,
        target=OverlappedTarget(target, drafting.ahead),
        drafter=drafting.drafter,
        lookahead=drafting.lookahead,
        rule=drafting.rule,
        options=sampling,
        stats=Stats(route=plan.route, prompt_eval_count=len(tokens)),
        monitor=monitor_for(settings, sampling, known.plain if known and settings.route is Route.AUTO else None),
    )


def _seed(sampling: SamplingOptions, *, must: bool) -> int | None:
    """The base of the position seeds; None at temperature 0, where sampling is deterministic."""
    if sampling.greedy:
        return None
    return secrets.randbits(31) if must and sampling.seed is None else sampling.seed
