"""From a pair's settings to a running reply: servers, what is known of the models, checks, and the loop.

The only place that names concrete backends.
"""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import AsyncGenerator, AsyncIterator, Mapping
from contextlib import AsyncExitStack, aclosing, suppress
from dataclasses import replace
from time import perf_counter_ns
from types import TracebackType
from typing import Any, Self

from specollama.backends import vocabulary as vocabularies
from specollama.backends.facts import Model, describe, passed_on
from specollama.backends.http import OllamaServer
from specollama.backends.probe import Probe, cache_file, keep, measure, recall
from specollama.backends.requests import Requests
from specollama.backends.vocabulary import LlamaVocabulary
from specollama.backends.watch import Watch
from specollama.checks import (
    Conversation,
    Tokenizers,
    choose_rule,
    compared,
    why_not_lanes,
    why_not_split,
    why_plain,
)
from specollama.config import PairSettings
from specollama.engine.rounds import Speculation
from specollama.errors import EndpointError, ModelMissing, Refused, RunError
from specollama.hosts import Endpoint
from specollama.lookahead import AdaptiveLookahead, FixedLookahead, Lookahead, Patience
from specollama.plan import Plan, begins_twice, detail, drafter, verifier, without_begin_marker
from specollama.sampling import effective
from specollama.stats import Done, Event, Stats, Status, Text, ToolCalls
from specollama.thinking import OPENING, ThinkingSplitter
from specollama.types import DoneReason, Origin, Route, SamplingOptions, Token
from specollama.wire import ChatReply

__all__ = ["Conversation", "Pair", "probe_pair"]

DEFAULT_LANES = 8  # concurrent rows, where the configuration doesn't say how many the target works on at once
PROBE_LIMIT = 2.0  # seconds
PATIENT_PROBE_LIMIT = 60.0  # seconds


class Pair:
    """A pair whose servers can be asked. Use it as an async context manager.

    Raises from `reply`: ModelMissing, Unreachable and other EndpointErrors of the target; UnsupportedPair when the
    settings force what can't be done losslessly.
    """

    def __init__(self, settings: PairSettings, environ: Mapping[str, str]) -> None:
        self.settings = settings
        self._stack = AsyncExitStack()
        self.target_server = _server(settings.target.endpoint, environ)
        self.draft_server = _server(settings.draft.endpoint, environ) if settings.draft else None
        self._known: tuple[Model, Model | str] | None = None
        self._tokenizers: Tokenizers | None = None
        self._comparing = asyncio.Lock()

    async def __aenter__(self) -> Self:
        await self._stack.enter_async_context(self.target_server)
        if self.draft_server:
            await self._stack.enter_async_context(self.draft_server)
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._tokenizers and self._tokenizers.target:
            self._tokenizers.target.close()
        await self._stack.aclose()

    async def reply(self, conversation: Conversation) -> AsyncGenerator[Event, None]:
        """The events of one reply: a Status, Text as it comes, Done. Close it to stop; nothing runs on then."""
        began, first = perf_counter_ns(), 0
        async with aclosing(self._events(conversation)) as events:
            async for event in events:
                if isinstance(event, Text):
                    first = first or perf_counter_ns() - began
                if isinstance(event, Done):
                    event.stats.first_token_duration = first
                    event.stats.total_duration = perf_counter_ns() - began
                yield event

    async def _events(self, conversation: Conversation) -> AsyncGenerator[Event, None]:
        target, _ = await self.models()
        options = {**self.settings.options, **conversation.options}
        plan = await self._prepare(conversation, options, effective(options, target.parameters, target.defaults))
        reason = plan if isinstance(plan, str) else None
        if isinstance(plan, Plan):
            async with aclosing(self._speculated(plan)) as events:
                async for event in _unless_nothing_came(events):
                    if isinstance(event, str):
                        reason = event
                        break
                    yield event
            # The draw that was begun, not another: one that takes whatever comes would be biased.
            options = {**options, "seed": plan.first_seed}
        if reason is not None:
            async with aclosing(self._plain(conversation, options, reason)) as events:
                async for event in events:
                    yield event

    async def models(self) -> tuple[Model, Model | str]:
        """What is known of the target, and of the draft model or why it can't be asked."""
        if self._known is None:
            target, draft = await asyncio.gather(
                describe(self.target_server, self.settings.target.model), self._describe_draft()
            )
            if isinstance(draft, str):
                return target, draft  # asked again the next time: it may be there by then
            self._known = target, draft
        return self._known

    async def _describe_draft(self) -> Model | str:
        unused = self.settings.route is Route.PLAIN or self.settings.lookahead == 0
        if self.draft_server is None or self.settings.draft is None or unused:
            return "no draft model"
        try:
            return await describe(self.draft_server, self.settings.draft.model)
        except ModelMissing:
            raise  # a wrong name, or a pull that was forgotten: not a fault that passes
        except EndpointError as error:
            return f"the draft's server: {error}"

    async def _prepare(
        self, conversation: Conversation, options: Mapping[str, Any], sampling: SamplingOptions
    ) -> Plan | str:
        """How the reply is going to be speculated, or why it isn't."""
        target, draft = await self.models()
        if reason := why_plain(self.settings, target, conversation):
            return reason
        if isinstance(draft, str):
            return draft
        tokenizers = await self.tokenizers(target, draft)
        if reason := why_not_split(target, tokenizers.target):
            return reason
        passed, keep_alive = passed_on(options), self.settings.keep_alive
        requests = Requests(target.name, sampling, passed, keep_alive)
        try:
            body = self._chat_body(conversation, passed) | {"truncate": False}
            prompt = await target.server.render(body | requests.kept)
        except Refused as error:
            return str(error)  # the chat itself may not be refused
        if prompt is None:
            return "the target's server doesn't tell what prompt it makes of a chat"
        if tokenizers.target is None and begins_twice(prompt, target):
            return (
                f"the begin marker may come twice, which can't be told without a vocabulary: {tokenizers.why_not_exact}"
            )
        plan = Plan(
            route=self.settings.route,
            rule=choose_rule(self.settings.rule, sampling, target, draft, tokenizers),
            seed=secrets.randbits(31) if sampling.seed is None else sampling.seed,
            prompt=without_begin_marker(prompt, tokenizers.target),
            target=target,
            draft=draft,
            target_requests=requests,
            draft_requests=Requests(draft.name, sampling, passed, keep_alive),
            tokenizers=tokenizers,
            context_length=await _context_length(target),
            lanes=self.settings.lanes or DEFAULT_LANES,
        )
        return await self._routed(plan)

    async def _routed(self, plan: Plan) -> Plan | str:
        """The plan with its route decided, or why it is better not followed."""
        if plan.full:
            return f"the prompt of {plan.prompt_tokens} tokens fills the context of {plan.context_length}"
        if plan.route is not Route.AUTO:
            return plan
        probe = await probe_pair(plan.target_requests, plan.target, plan.draft_requests, plan.draft)
        if isinstance(probe, str):
            return probe
        obstacle = why_not_lanes(probe, plan.prompt_tokens, plan.lanes)
        return obstacle or replace(plan, route=Route.LANES, probe=probe)

    def _chat_body(self, conversation: Conversation, options: Mapping[str, Any]) -> dict[str, Any]:
        keep_alive = self.settings.keep_alive
        return {
            "model": self.settings.target.model,
            "messages": [message.body() for message in conversation.messages],
            "options": dict(options),
            **({} if keep_alive is None else {"keep_alive": keep_alive}),
            **({} if conversation.format in (None, "") else {"format": conversation.format}),
            **({"tools": list(conversation.tools)} if conversation.tools else {}),
            **({} if conversation.think is None else {"think": conversation.think}),
        }

    async def _plain(
        self, conversation: Conversation, options: Mapping[str, Any], reason: str
    ) -> AsyncGenerator[Event, None]:
        """The target's own answer through its own chat endpoint, as it comes."""
        stats, keep_alive = Stats(route=Route.PLAIN, reason=reason), self.settings.keep_alive
        body = self._chat_body(conversation, options) | ({} if keep_alive is None else {"keep_alive": keep_alive})
        if conversation.top_logprobs:
            body |= {"logprobs": True, "top_logprobs": conversation.top_logprobs}
        yield Status(on=False, detail=reason)
        async with aclosing(self.target_server.stream_chat(body)) as chunks:
            async for chunk in chunks:
                if chunk.message.thinking:
                    yield Text(chunk.message.thinking, Origin.PLAIN, thinking=True)
                if chunk.message.content:
                    stats.plain += 1
                    yield Text(chunk.message.content, Origin.PLAIN, top=_most_probable(chunk))
                if chunk.message.tool_calls:
                    yield ToolCalls(tuple(chunk.message.tool_calls))
                if chunk.done:
                    stats.prompt_eval_count = chunk.prompt_eval_count or 0
                    stats.eval_count = chunk.eval_count or stats.plain
                    yield Done(DoneReason.LENGTH if chunk.done_reason == "length" else DoneReason.STOP, stats)

    async def _speculated(self, plan: Plan) -> AsyncGenerator[Event, None]:
        lookahead, stats = self._lookahead(plan), Stats(route=plan.route, prompt_eval_count=plan.prompt_tokens)
        yield Status(on=True, detail=detail(plan, lookahead))
        watch = Watch(plan.target, plan.draft, plan.lanes, plan.probe.step if plan.probe else None)
        async with AsyncExitStack() as stack:
            speculation = Speculation(
                prompt=plan.prompt,
                target=await verifier(plan, watch, stack),
                drafter=drafter(plan, watch),
                lookahead=lookahead,
                rule=plan.rule,
                options=plan.target_requests.options,
                stats=stats,
                patience=self._patience(plan),
            )
            events = await stack.enter_async_context(aclosing(speculation.events()))
            async for event in _thinking_apart(events, plan):
                yield event
        await _unload(plan)

    def _patience(self, plan: Plan) -> Patience | None:
        """None where a person asked for speculation whatever it brings, or for a reply that no clock decides on."""
        if plan.route is Route.GREEDY or self.settings.lookahead != "auto":
            return None
        if plan.target_requests.options.seed is not None and not plan.target_requests.options.greedy:
            return None
        return Patience(plan.probe.step if plan.probe else None)

    def _lookahead(self, plan: Plan) -> Lookahead:
        if self.settings.lookahead == "auto":
            return AdaptiveLookahead(most=max(1, plan.lanes - 1))
        if plan.route is Route.LANES and self.settings.lanes is not None:
            return FixedLookahead(min(self.settings.lookahead, max(1, plan.lanes - 1)))
        return FixedLookahead(self.settings.lookahead)

    async def tokenizers(self, target: Model, draft: Model) -> Tokenizers:
        """Once for a pair: the target's tokenizer, and whether the draft model's is the same."""
        async with self._comparing:
            if self._tokenizers is None:
                ours, theirs = await asyncio.gather(_vocabulary(target), _vocabulary(draft))
                known = compared(ours, theirs)
                if isinstance(theirs, LlamaVocabulary):
                    theirs.close()
                if any(isinstance(side, EndpointError) for side in (ours, theirs)):
                    return known  # asked again the next time
                self._tokenizers = known
            return self._tokenizers


async def probe_pair(
    target: Requests, target_model: Model, draft: Requests, draft_model: Model, *, patiently: bool = False
) -> Probe | str:
    """What was measured of the pair, now or within the last day, or why it could not be.

    `patiently`: now in any case, however long it takes up to a minute.
    """
    file = cache_file(target, target_model, draft_model)
    limit = PATIENT_PROBE_LIMIT if patiently else PROBE_LIMIT
    if not patiently and (known := recall(file)):
        return known
    try:
        await asyncio.gather(
            target_model.server.generate(target.load_only()), draft_model.server.generate(draft.load_only())
        )
        async with asyncio.timeout(limit):
            probe = await measure(target, target_model, draft, draft_model)
    except TimeoutError:
        why = f"measuring the pair took longer than {limit:g} s: `specollama pairs --measure` takes its time"
        keep(why, file)  # or the next reply would begin so late as well
        return why
    except EndpointError as error:
        return f"measuring the pair failed: {error}"
    keep(probe, file)
    return probe


async def _unload(plan: Plan) -> None:
    """After a reply whose models aren't to stay: best effort, since the reply is whole."""
    for model, requests in ((plan.target, plan.target_requests), (plan.draft, plan.draft_requests)):
        if requests.unloads:
            with suppress(EndpointError):
                await model.server.generate(requests.unload())


async def _unless_nothing_came(events: AsyncIterator[Event]) -> AsyncGenerator[Event | str, None]:
    """The events of a speculated reply; a reason instead, when it came to nothing before any text.

    The target's own chat endpoint then answers better than the rest of a raw stream would: it knows its model's
    markers. So does it when the target refuses a raw request (status 400) but may not refuse the chat.
    """
    shown, first = False, None
    try:
        async for event in events:
            if isinstance(event, Status) and first is None:
                first = event  # kept back until there is text, so that no status is taken back
            elif isinstance(event, Status) and not shown:
                yield event.detail
                return
            else:
                if first is not None and not shown:
                    yield first
                shown = True
                yield event
    except Refused as error:
        if shown or error.status != 400:
            raise
        yield str(error)


def _most_probable(chunk: ChatReply) -> tuple[Token, ...]:
    """The best tokens at the place of a chunk's only token; none where it has several, or its server told none."""
    [entry] = chunk.logprobs if chunk.logprobs and len(chunk.logprobs) == 1 else [None]
    best = entry.top_logprobs or [] if entry else []
    return tuple(Token(each.token, each.logprob) for each in best)


async def _thinking_apart(events: AsyncIterator[Event], plan: Plan) -> AsyncGenerator[Event, None]:
    """The events with a thinking model's thinking marked as such."""
    if not plan.target.thinks:
        async for event in events:
            yield event
        return
    splitter, last = ThinkingSplitter(plan.prompt.rstrip().endswith(OPENING)), Text("", Origin.PLAIN)
    async for event in events:
        if isinstance(event, Text):
            last = event
            for text, thinking in splitter.feed(event.text):
                yield replace(event, text=text, thinking=thinking)
        else:
            if isinstance(event, Done):
                for text, thinking in splitter.end():
                    yield replace(last, text=text, thinking=thinking)
            yield event


def _server(endpoint: Endpoint, environ: Mapping[str, str]) -> OllamaServer:
    return OllamaServer(
        endpoint.url,
        token=endpoint.token(environ),
        source=endpoint.source,
        connect_timeout=endpoint.connect_timeout,
        idle_timeout=endpoint.idle_timeout,
    )


async def _vocabulary(model: Model) -> LlamaVocabulary | RunError | OSError:
    """The model's tokenizer, from the cache or from its server, or why it isn't to be had."""
    if not model.digest:
        return RunError(f"{model.server.url} doesn't list {model.name}")
    path = vocabularies.cached(model.server.url, model.digest)
    try:
        if not path.exists():
            show = await model.server.show(model.name, verbose=True)
            await asyncio.to_thread(vocabularies.write, show.model_info, path)
        return await asyncio.to_thread(LlamaVocabulary, path)
    except (RunError, OSError) as error:
        return error


async def _context_length(model: Model) -> int | None:
    """Tokens a slot of the loaded model has; None when its server doesn't say."""
    try:
        running = (await model.server.ps()).models
    except EndpointError:
        return None
    return next((entry.context_length for entry in running if entry.digest == model.digest), None) or None
