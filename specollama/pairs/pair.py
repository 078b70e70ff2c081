"""Plans each reply of a pair (route, models, acceptance rule) and runs it. Caches information on the models."""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import AsyncGenerator, Callable, Mapping
from contextlib import AsyncExitStack, aclosing
from copy import copy
from dataclasses import dataclass, field, replace
from pathlib import Path
from time import monotonic, perf_counter_ns
from typing import Any, Self, Unpack

from specollama.backends.llama_cpp.tokenizer import LlamaTokenizer
from specollama.backends.ollama.client import OllamaServer
from specollama.backends.ollama.model_info import ModelInfo, context_length, fetch_model_info, forwarded_options
from specollama.backends.ollama.request_bodies import RequestTemplate
from specollama.backends.ollama.slot_probe import probe_pair
from specollama.backends.ollama.tokenizer import load_tokenizers
from specollama.config.endpoints import Endpoint
from specollama.config.settings import FileRef, Overrides, PairSettings, ollama_endpoint
from specollama.errors import EndpointError, ModelMissing, Unreachable, UnsupportedPair
from specollama.pairs.decision_log import log_event
from specollama.pairs.event_streams import fall_back_if_empty, plain_events
from specollama.pairs.feasibility import (
    ReplyContext,
    choose_acceptance_method,
    why_drafting_is_off,
    why_not_lanes,
    why_not_split,
    why_plain,
)
from specollama.pairs.prompt import NoPrompt, render_on_server
from specollama.pairs.request import ChatInput, ReplyInput
from specollama.pairs.routes.lanes import OllamaPlan, may_double_bos, ollama_events
from specollama.pairs.routes.local import BUSY, LocalPlan, LocalRoute, local_events
from specollama.pairs.routes.native import NativePlan, NativeRoute
from specollama.pairs.routes.scoring import ScoringPlan, ScoringRoute, scoring_events
from specollama.pairs.served_drafters import request_template
from specollama.pairs.slots import DEFAULT_SLOTS
from specollama.pairs.tokenizers import TokenizerMatch, compare_tokenizers
from specollama.spec_decode.decode_loop import RoundObserver
from specollama.spec_decode.events import Done, Event, Status, Text
from specollama.spec_decode.metrics import Stats
from specollama.spec_decode.sampler_support import sampler_obstacle
from specollama.spec_decode.types import Route, SamplingOptions

AnyPlan = OllamaPlan | LocalPlan | NativePlan | ScoringPlan

_MODEL_INFO_TTL = 10.0  # seconds until model information is fetched again: a tag may point to another model by then


@dataclass(slots=True)
class _ModelCache:
    """Model information shared by all replies of a pair."""

    models: tuple[ModelInfo, ModelInfo | str] | None = None
    fetched_at: float = 0.0  # monotonic time of the fetch, in seconds
    draft: ModelInfo | str = ""  # the draft model of a target that isn't on an Ollama
    tokenizers: dict[tuple[str, str], TokenizerMatch] = field(
        default_factory=dict
    )  # by the digests of target and draft
    compare_lock: asyncio.Lock = field(default_factory=asyncio.Lock)
    measure_lock: asyncio.Lock = field(default_factory=asyncio.Lock)


class Pair:
    """A target and its drafters, with open connections. Use it as an async context manager.

    `reply` raises ModelMissing, Unreachable and other EndpointErrors of the target. It raises UnsupportedPair if the
    settings force a route that isn't lossless for the request.
    """

    def __init__(self, settings: PairSettings, environ: Mapping[str, str], state: Path | None = None) -> None:
        """`state`: the folder for saved timings and calibration; None: the user's state folder."""
        self.settings = settings
        self._stack = AsyncExitStack()
        self._local, self._scoring = LocalRoute(environ, state), ScoringRoute(environ, state)
        self._native = NativeRoute(environ)
        ollama = ollama_endpoint(settings.target)
        self._target_server = _server(ollama, environ) if ollama else None
        self.draft_server = _server(settings.draft.endpoint, environ) if settings.draft else None
        self._cache = _ModelCache()
        self._observer: RoundObserver | None = None

    async def __aenter__(self) -> Self:
        for server in (self._target_server, self.draft_server):
            if server:
                await self._stack.enter_async_context(server)
        self._stack.push_async_callback(self._local.close)
        self._stack.push_async_callback(self._scoring.close)
        self._stack.push_async_callback(self._native.close)
        return self

    @property
    def target_server(self) -> OllamaServer:
        """The Ollama server of the target. Raises UnsupportedPair if the target is a file or another engine's model."""
        if self._target_server is None:
            raise UnsupportedPair(f"{self.settings.target} isn't served by an Ollama, which alone can do this")
        return self._target_server

    async def __aexit__(self, *error: object) -> None:
        await self._stack.aclose()

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

    async def context_length(self) -> int | None:
        """Context length in tokens; None if unknown, for example before the models are loaded."""
        known = self._local.context_length or self._scoring.context_length
        if known or self.is_without_ollama:
            return known
        return await context_length((await self.model_infos())[0])

    async def reply(self, ask: ReplyInput) -> AsyncGenerator[Event, None]:
        """Yield the events of one reply: a Status, Text, and Done. Close the generator to stop all work."""
        began, first = perf_counter_ns(), 0
        async with aclosing(self._events(ask)) as events:
            async for event in events:
                if isinstance(event, Text):
                    first = first or perf_counter_ns() - began
                if isinstance(event, Done):
                    event.stats.first_token_duration = first
                    event.stats.total_duration = perf_counter_ns() - began
                log_event(event)
                yield event

    async def _events(self, ask: ReplyInput) -> AsyncGenerator[Event, None]:
        plan = await self.make_plan(ask)
        options = ReplyContext(self.settings, ask).options
        reason = plan if isinstance(plan, str) else None
        if not isinstance(plan, str):
            async with aclosing(self.speculated_events(plan)) as events:
                async for event in events:
                    if isinstance(event, str):
                        reason = event
                        break
                    yield event
        if isinstance(plan, OllamaPlan):
            # Use the seed of the first attempt: a second, independent sample would bias the distribution.
            options = {**options, "seed": plan.first_seed}
        if reason is not None:
            async with aclosing(self._plain(ask, options, reason)) as plain_events:
                async for plain_event in plain_events:
                    yield plain_event

    async def make_plan(self, ask: ReplyInput) -> AnyPlan | str:
        """Return the plan of a speculated reply, or the reason to answer without speculation."""
        context = ReplyContext(self.settings, ask)
        if isinstance(self.settings.target, FileRef):
            return await self._with_served_draft(await self._local.plan_without_server(context))
        if self.settings.route is Route.NATIVE:
            return await self._native.plan(self.settings, self._body(ask, context.options))
        if self._scoring.api(self.settings):
            return await self._plan_scoring(context)
        try:
            target, draft = await self.model_infos()
        except Unreachable:
            opened = await self._local.open_models(self.settings, context.options)
            if isinstance(opened, str):
                raise
            opened.notices.append("its server can't be reached: the file's own template, and no Modelfile's options")
            return await self._with_served_draft(await self._local.plan_without_server(context))
        except EndpointError:
            if not await self._scoring.detect_engine(self.settings):
                raise
            return await self._plan_scoring(context)
        if self.settings.route is Route.SCORING:
            raise UnsupportedPair("route scoring is for other engines: Ollama's API can't score given tokens")
        context = replace(context, target=target)
        if reason := why_plain(context, target):
            return reason
        local = await self._plan_local(context, target, draft)
        if isinstance(local, LocalPlan) or self.settings.route is Route.LOCAL:
            return local
        plan = await self._plan_ollama(context, target, draft)
        return f"{plan}; {local}" if isinstance(plan, str) and local and local not in plan else plan

    async def sampling(self, ask: ReplyInput) -> SamplingOptions:
        """Return the sampling options that the target's server would use."""
        target = None if self.is_without_ollama else (await self.model_infos())[0]
        return ReplyContext(self.settings, ask, target).sampling

    async def _plan_scoring(self, context: ReplyContext) -> ScoringPlan:
        """Return the plan for a target on another engine (vLLM, SGLang, llama-server and others)."""
        return await self._scoring.plan(context, await self._served_draft())

    async def _served_draft(self) -> ModelInfo | str:
        """The draft model on a server, for a target that isn't on an Ollama; or the reason there is none."""
        async with self._cache.compare_lock:
            if not isinstance(self._cache.draft, ModelInfo):
                self._cache.draft = await self._describe_draft()
            return self._cache.draft

    @property
    def is_without_ollama(self) -> bool:
        """Whether the target is known not to be on an Ollama server."""
        return isinstance(self.settings.target, FileRef) or self._scoring.api(self.settings) is not None

    async def scoring_route(self) -> ScoringRoute | None:
        """The route `scoring`, if another engine serves the target; None for an Ollama server or a file."""
        return self._scoring if await self._scoring.detect_engine(self.settings) else None

    async def _plan_local(self, context: ReplyContext, target: ModelInfo, draft: ModelInfo | str) -> LocalPlan | str:
        """A local plan, or the reason there is none ("" if the reason need not be shown)."""
        if not context.sampling.greedy and not target.has_known_sampler:
            return "the target's sampler doesn't work in llama.cpp's order"
        if reason := sampler_obstacle(context.sampling):
            return f"local: {reason}"
        opened = await self._local.open_models(self.settings, context.options, target)
        if isinstance(opened, str):
            return opened
        if opened.reply_lock.locked():
            return BUSY
        if reason := why_not_split(target, opened.target.vocabulary):
            return reason
        prompt = await self._prompt(context, target, opened.target.vocabulary, here=True)
        if isinstance(prompt, NoPrompt):
            return prompt.reason
        if reason := opened.why_full(prompt):
            return reason
        opened.notices += await self._local.loaded_twice_notice(target)
        raw = context.request.raw
        return await self._with_served_draft(
            LocalPlan(opened, prompt, context, raw, target.can_think, opened.pop_notices()), draft
        )

    async def _with_served_draft(self, plan: LocalPlan, draft: ModelInfo | str | None = None) -> LocalPlan:
        """Add the draft model that is only available on its server, or a notice why it doesn't draft."""
        if why_drafting_is_off(self.settings) or self.settings.draft not in self._local.remaining:
            return plan
        if isinstance(found := draft or await self._served_draft(), ModelInfo):
            return replace(plan, served_drafts=(found,))
        return replace(plan, notices=(found, *plan.notices))

    async def speculated_events(
        self, plan: AnyPlan, lanes: Callable[[], int] | None = None
    ) -> AsyncGenerator[Event | str, None]:
        """Yield the events of a planned reply, or only a fallback reason if the reply failed before its first token.

        The fallback must use the seed `plan.first_seed`: a second, independent sample would bias the distribution.
        `lanes` returns the number of lanes that the reply may use now; None: all.
        """
        if not isinstance(plan, OllamaPlan):
            async with aclosing(self._other_events(plan)) as others:
                async for event_of_other in others:
                    yield event_of_other
            return
        async with aclosing(ollama_events(plan, self.settings, lanes, self._observer)) as events:
            async for event in fall_back_if_empty(events):
                yield event

    def _other_events(self, plan: LocalPlan | NativePlan | ScoringPlan) -> AsyncGenerator[Event, None]:
        if isinstance(plan, NativePlan):
            return plan.events()
        if isinstance(plan, LocalPlan):
            return local_events(plan, self.settings, self._observer)
        return scoring_events(plan, self.settings, self._observer)

    def context_tokens(self, plan: AnyPlan, text: str) -> list[int] | None:
        """Token ids of prompt and reply, for `context` of /api/generate; None if they aren't known exactly."""
        if isinstance(plan, ScoringPlan | NativePlan):
            return None
        exact = plan.models.target.vocabulary if isinstance(plan, LocalPlan) else plan.tokenizers.target
        return None if exact is None or plan.raw else list(exact.encode(plan.prompt + text))

    async def model_infos(self) -> tuple[ModelInfo, ModelInfo | str]:
        """Return information on target and draft model (or why the draft is unavailable), cached for some seconds."""
        if self._cache.models is None or monotonic() - self._cache.fetched_at > _MODEL_INFO_TTL:
            target, draft = await asyncio.gather(
                fetch_model_info(self.target_server, self.settings.target.model), self._describe_draft()
            )
            if isinstance(draft, str) and self.settings.draft:
                return target, draft  # not cached: the draft server may be back at the next reply
            self._cache.models, self._cache.fetched_at = (target, draft), monotonic()
        return self._cache.models

    async def _describe_draft(self) -> ModelInfo | str:
        unused = self.settings.route is Route.PLAIN or self.settings.lookahead == 0
        if self.draft_server is None or self.settings.draft is None or unused:
            return "no draft model"
        try:
            return await fetch_model_info(self.draft_server, self.settings.draft.model)
        except ModelMissing:
            raise  # a wrong name or a missing pull: a retry would not help
        except EndpointError as error:
            return f"the draft's server: {error}"

    async def _plan_ollama(self, context: ReplyContext, target: ModelInfo, draft: ModelInfo | str) -> OllamaPlan | str:
        """Return a plan for a target on an Ollama server, or the reason to answer without speculation."""
        sampling, model = context.sampling, draft if isinstance(draft, ModelInfo) else None
        if isinstance(draft, str) and not self.settings.uses_lookup_alone:
            return draft
        tokenizers = await self.tokenizers(target, model)
        if reason := why_not_split(target, tokenizers.target):
            return reason
        prompt = await self._prompt(context, target, tokenizers.target)
        if isinstance(prompt, NoPrompt):
            return prompt.reason
        if tokenizers.target is None and may_double_bos(prompt, target):
            return (
                f"the begin marker may come twice, which can't be told without a vocabulary: {tokenizers.why_not_exact}"
            )
        plan = OllamaPlan(
            route=self.settings.route,
            rule=choose_acceptance_method(self.settings.rule, sampling, target, model, tokenizers),
            seed=secrets.randbits(31) if sampling.seed is None else sampling.seed,
            prompt=prompt,
            raw=context.request.raw,
            target=target,
            draft=model,
            lookup=self.settings.uses_lookup and (model is None or self.settings.route is not Route.GREEDY),
            target_requests=request_template(target, context),
            draft_requests=request_template(model, context) if model else None,
            tokenizers=tokenizers,
            context_length=await context_length(target),
            lanes=self.settings.lanes or DEFAULT_SLOTS,
        )
        return await self._choose_route(plan)

    async def _prompt(
        self, context: ReplyContext, target: ModelInfo, vocabulary: LlamaTokenizer | None, *, here: bool = False
    ) -> str | NoPrompt:
        """Render the prompt. `here`: the target runs in process, and its server only renders the prompt."""
        body = self._body(context.request, forwarded_options(context.options)) | {"truncate": False}
        unloads = RequestTemplate(target.name, SamplingOptions(), keep_alive=self.settings.keep_alive).unloads
        if unloads and not here:
            body.pop("keep_alive")  # rendering would unload the model
        return await render_on_server(context.request, body, target, vocabulary)

    async def _choose_route(self, plan: OllamaPlan) -> OllamaPlan | str:
        """Return the plan with its route decided, or the reason to answer without speculation."""
        if plan.is_full:
            return f"the prompt of {plan.prompt_tokens} tokens fills the context of {plan.context_length}"
        if plan.route is not Route.AUTO:
            return plan
        if self._cache.measure_lock.locked():
            return "the pair is being measured"  # by another reply; two concurrent probes would distort each other
        async with self._cache.measure_lock:
            probe = await probe_pair(plan.target_requests, plan.target, plan.draft_requests, plan.draft)
        if isinstance(probe, str):
            return probe
        obstacle = why_not_lanes(probe, plan.prompt_tokens, plan.lanes)
        return obstacle or replace(plan, route=Route.LANES, probe=probe)

    def _body(self, ask: ReplyInput, options: Mapping[str, Any]) -> dict[str, Any]:
        keep_alive = self.settings.keep_alive
        kept = {} if keep_alive is None else {"keep_alive": keep_alive}
        return {"model": self.settings.target.model, **ask.body(), "options": dict(options), **kept}

    async def _plain(self, ask: ReplyInput, options: Mapping[str, Any], reason: str) -> AsyncGenerator[Event, None]:
        """Yield the target's answer from its own endpoint, without speculation."""
        stats, body = Stats(route=Route.PLAIN, reason=reason), self._body(ask, options)
        yield Status(on=False, detail=reason)
        server = self.target_server
        stream = server.stream_chat(body) if isinstance(ask, ChatInput) else server.stream_generate(body)
        async with aclosing(stream) as chunks:
            async for event in plain_events(chunks, stats):
                yield event

    async def tokenizers(self, target: ModelInfo, draft: ModelInfo | None) -> TokenizerMatch:
        """Return the target's tokenizer and whether the draft model shares it, cached by the models' digests."""
        async with self._cache.compare_lock:
            digests = target.digest, draft.digest if draft else ""
            if digests not in self._cache.tokenizers:
                ours, theirs = await load_tokenizers(target, draft)
                known = compare_tokenizers(ours, theirs)
                if known.target:
                    self._stack.callback(known.target.close)
                if isinstance(theirs, LlamaTokenizer):
                    theirs.close()
                if any(isinstance(side, EndpointError) for side in (ours, theirs)):
                    return known  # not cached: the next reply tries again
                self._cache.tokenizers[digests] = known
            return self._cache.tokenizers[digests]


def _server(endpoint: Endpoint, environ: Mapping[str, str]) -> OllamaServer:
    return OllamaServer(endpoint.url, **endpoint.connection_settings(environ))
