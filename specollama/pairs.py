"""From a pair's settings to a running reply: servers, what is known of the models, checks, and the loop.

The only place that names concrete backends.
"""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import AsyncGenerator, Mapping, Sequence
from contextlib import AsyncExitStack, aclosing
from dataclasses import dataclass, field
from random import Random
from time import perf_counter_ns
from types import TracebackType
from typing import Any, Self

from specollama.alignment import CountedCursor, Cursor, ExactCursor
from specollama.backends import vocabulary as vocabularies
from specollama.backends.base import Drafter, Target
from specollama.backends.facts import Model, describe, first_difference, load_options
from specollama.backends.http import OllamaServer
from specollama.backends.ollama import (
    ContinuationTarget,
    LanesTarget,
    OllamaDrafter,
    Requests,
    RetokenisedDrafter,
)
from specollama.backends.vocabulary import LlamaVocabulary
from specollama.config import PairSettings
from specollama.engine.rounds import Speculation
from specollama.errors import MissingPackage, RunError, Unreachable, UnsupportedPair
from specollama.hosts import Endpoint
from specollama.lookahead import AdaptiveLookahead, FixedLookahead, Lookahead
from specollama.sampling import effective
from specollama.stats import Done, Event, Stats, Status, Text
from specollama.types import DoneReason, Origin, Route, Rule, SamplingOptions
from specollama.wire import LOAD_OPTIONS, Message

DEFAULT_LANES = 8  # concurrent rows, where the configuration doesn't say how many the target works on at once


@dataclass(frozen=True, slots=True)
class Conversation:
    """What is to be answered. `options` are Ollama's, by its names; those that are set here win over the pair's."""

    messages: Sequence[Message]
    options: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Tokenizers:
    """What is known of a pair's tokenizers. `same`: the draft model's tokens are the target's."""

    target: LlamaVocabulary | None = None
    same: bool = False
    why_not_exact: str = ""  # why the target's isn't there


class Pair:
    """A pair whose servers can be asked. Use it as an async context manager.

    Raises from `reply`: ModelMissing, Unreachable and other EndpointErrors of the target; UnsupportedPair when the
    settings force what can't be done losslessly.
    """

    def __init__(self, settings: PairSettings, environ: Mapping[str, str]) -> None:
        self.settings = settings
        self._stack = AsyncExitStack()
        self._target_server = _server(settings.target.endpoint, environ)
        self._draft_server = _server(settings.draft.endpoint, environ) if settings.draft else None
        self._known: tuple[Model, Model | str] | None = None
        self._tokenizers: Tokenizers | None = None

    async def __aenter__(self) -> Self:
        await self._stack.enter_async_context(self._target_server)
        if self._draft_server:
            await self._stack.enter_async_context(self._draft_server)
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._tokenizers and self._tokenizers.target:
            self._tokenizers.target.close()
        await self._stack.aclose()

    async def reply(self, conversation: Conversation) -> AsyncGenerator[Event, None]:
        """The events of one reply: a Status, Text as it comes, Done. Close it to stop; nothing runs on then."""
        stats, began = Stats(), perf_counter_ns()
        events = self._events(conversation, stats)
        async with aclosing(events):
            async for event in events:
                if isinstance(event, Text) and not stats.first_token_duration:
                    stats.first_token_duration = perf_counter_ns() - began
                if isinstance(event, Done):
                    stats.total_duration = perf_counter_ns() - began
                yield event

    async def _events(self, conversation: Conversation, stats: Stats) -> AsyncGenerator[Event, None]:
        target, draft = await self._models()
        options = {**self.settings.options, **conversation.options}
        sampling = effective(options, target.parameters, target.defaults)
        reason = why_plain(self.settings, target, draft)
        prompt = None if reason else await self._render(target, conversation, options)
        if isinstance(draft, str) or reason or prompt is None:
            reason = reason or "the target's server can't render a chat (Ollama before 0.11.5)"
            events = self._plain(target, conversation, options, stats, reason)
        else:
            events = self._speculated(target, draft, prompt, options, sampling, stats)
        async with aclosing(events):
            async for event in events:
                yield event

    async def _models(self) -> tuple[Model, Model | str]:
        """What is known of the target, and of the draft model or why it can't be asked."""
        if self._known is None:
            target, draft = await asyncio.gather(
                describe(self._target_server, self.settings.target.model), self._describe_draft()
            )
            self._known = target, draft
        return self._known

    async def _describe_draft(self) -> Model | str:
        if self._draft_server is None or self.settings.draft is None or self.settings.route is Route.PLAIN:
            return "no draft model"
        try:
            return await describe(self._draft_server, self.settings.draft.model)
        except Unreachable as error:
            return f"the draft's server: {error}"

    async def _render(self, target: Model, conversation: Conversation, options: Mapping[str, Any]) -> str | None:
        body = self._chat_body(target, conversation, load_options(options, LOAD_OPTIONS))
        return await target.server.render(body | {"truncate": False})

    def _chat_body(self, target: Model, conversation: Conversation, options: Mapping[str, Any]) -> dict[str, Any]:
        keep_alive = self.settings.keep_alive
        return {
            "model": target.name,
            "messages": [message.body() for message in conversation.messages],
            "options": dict(options),
            **({} if keep_alive is None else {"keep_alive": keep_alive}),
        }

    async def _plain(
        self,
        target: Model,
        conversation: Conversation,
        options: Mapping[str, Any],
        stats: Stats,
        reason: str,
    ) -> AsyncGenerator[Event, None]:
        """The target's own answer through its own chat endpoint, as it comes."""
        stats.route, stats.reason = Route.PLAIN, reason
        yield Status(on=False, detail=reason)
        async with aclosing(target.server.stream_chat(self._chat_body(target, conversation, options))) as chunks:
            async for chunk in chunks:
                if chunk.message.thinking:
                    yield Text(chunk.message.thinking, Origin.PLAIN, thinking=True)
                if chunk.message.content:
                    stats.plain += 1
                    logprob = chunk.logprobs[0].logprob if chunk.logprobs else None
                    yield Text(chunk.message.content, Origin.PLAIN, logprob=logprob)
                if chunk.done:
                    stats.prompt_eval_count = chunk.prompt_eval_count or 0
                    stats.eval_count = chunk.eval_count or stats.plain
                    yield Done(DoneReason.LENGTH if chunk.done_reason == "length" else DoneReason.STOP, stats)

    async def _speculated(
        self,
        target: Model,
        draft: Model,
        prompt: str,
        options: Mapping[str, Any],
        sampling: SamplingOptions,
        stats: Stats,
    ) -> AsyncGenerator[Event, None]:
        tokenizers = await self._compare_tokenizers(target, draft)
        rule = choose_rule(self.settings.rule, sampling, target, tokenizers)
        lookahead = self._lookahead()
        stats.route = self.settings.route
        load = load_options(options, LOAD_OPTIONS)
        prompt = _without_begin_marker(prompt, tokenizers.target)
        drafter = self._drafter(draft, Requests(draft.name, sampling, load, self.settings.keep_alive), rule, tokenizers)
        requests = Requests(target.name, sampling, load, self.settings.keep_alive)
        yield Status(on=True, detail=_detail(self.settings.route, lookahead, tokenizers))
        async with AsyncExitStack() as stack:
            verifier = await self._verifier(stack, target, requests, prompt, rule, tokenizers)
            speculation = Speculation(
                prompt, verifier, drafter, lookahead, rule, sampling, stats, Random(secrets.randbits(64))
            )
            events = await stack.enter_async_context(aclosing(speculation.events()))
            async for event in events:
                yield event

    async def _verifier(
        self,
        stack: AsyncExitStack,
        target: Model,
        requests: Requests,
        prompt: str,
        rule: Rule,
        tokenizers: Tokenizers,
    ) -> Target:
        if self.settings.route is Route.GREEDY:
            limit = requests.options.num_predict if requests.options.num_predict > 0 else None
            return await stack.enter_async_context(aclosing(ContinuationTarget(target.server, requests, prompt, limit)))
        seed = requests.options.seed
        cursor: Cursor = ExactCursor(prompt, tokenizers.target) if tokenizers.target else CountedCursor(prompt)
        return LanesTarget(
            target.server,
            requests,
            cursor,
            rule=rule,
            seed=secrets.randbits(31) if seed is None else seed,
            context_length=await _context_length(target),
            row_tokens=target.row_tokens,
        )

    def _drafter(self, draft: Model, requests: Requests, rule: Rule, tokenizers: Tokenizers) -> Drafter:
        vocabulary = tokenizers.target if tokenizers.same else None
        drafter = OllamaDrafter(draft.server, requests, rule=rule, seed=secrets.randbits(31), vocabulary=vocabulary)
        if tokenizers.target and not (tokenizers.same and draft.has_logprobs):
            return RetokenisedDrafter(drafter, tokenizers.target)
        return drafter

    def _lookahead(self) -> Lookahead:
        if self.settings.lookahead == "auto":
            return AdaptiveLookahead(most=max(1, (self.settings.lanes or DEFAULT_LANES) - 1))
        return FixedLookahead(self.settings.lookahead)

    async def _compare_tokenizers(self, target: Model, draft: Model) -> Tokenizers:
        """Once for a pair: the target's tokenizer, and whether the draft model's is the same."""
        if self._tokenizers is None:
            try:
                ours, theirs = await asyncio.gather(_vocabulary(target), _vocabulary(draft))
            except (RunError, MissingPackage) as error:
                self._tokenizers = Tokenizers(why_not_exact=str(error))
                return self._tokenizers
            same = first_difference(theirs.tokens(), ours.tokens()) is None
            theirs.close()
            self._tokenizers = Tokenizers(ours, same)
        return self._tokenizers


def why_plain(settings: PairSettings, target: Model, draft: Model | str) -> str | None:
    """Why the pair's replies can't be, or are not to be, speculated; None when they can."""
    if settings.route is Route.PLAIN:
        return "route plain was asked for"
    if isinstance(draft, str):
        return draft
    if settings.lookahead == 0:
        return "lookahead is 0"
    if target.remote:
        return f"{target.name} is a cloud model"
    if target.show.details.format == "safetensors":
        return f"{target.name} runs on the MLX engine"
    if target.speculates_itself:
        return f"{target.name} is speculated by its own server"
    if target.thinks:
        return f"{target.name} is a thinking model"
    return None


def choose_rule(asked: Rule, options: SamplingOptions, target: Model, tokenizers: Tokenizers) -> Rule:
    """The rule of a reply: greedy at temperature 0, else rejection where it is exact, else match.

    With a seed it is match, so that the reply doesn't depend on what was drafted. Raises UnsupportedPair when
    rejection was asked for and can't be exact.
    """
    if options.greedy:
        return Rule.GREEDY
    obstacle = _rejection_obstacle(options, target, tokenizers)
    if asked is Rule.REJECTION and obstacle:
        raise UnsupportedPair(f"rule rejection can't be kept lossless here: {obstacle}; use `match` or `auto`")
    return Rule.MATCH if asked is Rule.MATCH or obstacle else Rule.REJECTION


def _rejection_obstacle(options: SamplingOptions, target: Model, tokenizers: Tokenizers) -> str | None:
    if options.seed is not None:
        return "a seed asks for a reply that doesn't depend on the draft"
    if options.penalised:
        return "penalties change what log-probabilities don't show"
    if not target.sampler_known:
        return "the target's sampler doesn't work in llama.cpp's order"
    if tokenizers.target is None:
        return tokenizers.why_not_exact
    return None if tokenizers.same else "draft and target have different tokenizers"


def _detail(route: Route, lookahead: Lookahead, tokenizers: Tokenizers) -> str:
    detail = f"{route}, lookahead {lookahead}"
    if route is Route.LANES and tokenizers.target is None:
        detail += f"; cuts checked by token counts alone: {tokenizers.why_not_exact}"
    return detail


def _server(endpoint: Endpoint, environ: Mapping[str, str]) -> OllamaServer:
    return OllamaServer(
        endpoint.url,
        token=endpoint.token(environ),
        source=endpoint.source,
        connect_timeout=endpoint.connect_timeout,
        idle_timeout=endpoint.idle_timeout,
    )


async def _vocabulary(model: Model) -> LlamaVocabulary:
    """The model's tokenizer, from the cache or from its server. Raises RunError or MissingPackage."""
    if not model.digest:
        raise RunError(f"{model.server.url} doesn't list {model.name}")
    path = vocabularies.cached(model.digest)
    if not path.exists():
        show = await model.server.show(model.name, verbose=True)
        await asyncio.to_thread(vocabularies.write, show.model_info, path)
    return await asyncio.to_thread(LlamaVocabulary, path)


async def _context_length(model: Model) -> int | None:
    """Tokens a slot of the loaded model has; None when its server doesn't say."""
    running = (await model.server.ps()).models
    return next((entry.context_length for entry in running if entry.digest == model.digest), None) or None


def _without_begin_marker(prompt: str, vocabulary: LlamaVocabulary | None) -> str:
    """The server adds the begin marker itself: one in the text would be a second one."""
    if vocabulary is None or not vocabulary.adds_begin_marker or not vocabulary.begin_marker:
        return prompt
    return prompt.removeprefix(vocabulary.begin_marker)
