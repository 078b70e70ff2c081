"""Answers one request in Ollama's format: speculated if that is lossless, otherwise by the target's own server."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Iterator, Mapping
from contextlib import aclosing, contextmanager
from dataclasses import dataclass, field
from functools import partial
from time import perf_counter_ns
from typing import TYPE_CHECKING, Any

from specollama.backends.ollama.schema import Reply
from specollama.config.settings import Overrides
from specollama.errors import ApiError, SpecollamaError, UsageError
from specollama.pairs.decision_log import log_event
from specollama.pairs.ollama_request import ParsedRequest, parse_request, upstream_body
from specollama.pairs.ollama_response import ReplyWriter, join_replies
from specollama.pairs.pair import Pair
from specollama.pairs.pool import PairEntry
from specollama.pairs.report import stats_object
from specollama.pairs.routes.base import NotSpeculated, Plan, speculate_or_plain
from specollama.pairs.routes.plain import PlainPlan
from specollama.spec_decode.events import Done, Event, Status, Text, ToolCalls
from specollama.spec_decode.metrics import Stats
from specollama.spec_decode.types import DoneReason, Origin, Route

if TYPE_CHECKING:
    from specollama.pairs.trace.recorder import TraceRecorder

Chunk = dict[str, Any]


@dataclass(slots=True)
class PairResponse:
    """A pair's response to a request to /api/chat (`chat`) or /api/generate.

    `stats` holds the reply's counters. Route and reason are set with the first chunk, the rest at the end.
    """

    entry: PairEntry
    body: Mapping[str, Any]
    chat: bool
    stats: Stats = field(default_factory=Stats)
    _began: int = field(default_factory=perf_counter_ns)
    _recorder: TraceRecorder | None = None

    async def chunks(self) -> AsyncGenerator[Chunk, None]:
        """Yield Ollama's JSON objects; the last one has the counters under `specollama`. Close it to stop all work.

        Raises ApiError for an invalid request, EndpointError if the target's server refuses or fails, and another
        SpecollamaError if a target without a server can't be run.
        """
        with self._traced():
            async with aclosing(self._chunks()) as chunks:
                async for chunk in chunks:
                    yield chunk

    async def _chunks(self) -> AsyncGenerator[Chunk, None]:
        parsed = parse_request(self.body, chat=self.chat)
        pair = self._with_overrides(parsed.overrides)
        answer = speculate_or_plain(
            partial(self._plan, pair, parsed), partial(self._speculated, pair), partial(self._plain, pair)
        )
        async with aclosing(answer) as chunks:
            async for chunk in chunks:
                yield chunk

    @property
    def is_streaming(self) -> bool:
        return self.body.get("stream") is not False

    @contextmanager
    def _traced(self) -> Iterator[None]:
        trace = self.entry.trace
        if trace is None:
            yield
            return
        self._recorder = trace.recorder(self.entry.settings, "/api/chat" if self.chat else "/api/generate")
        try:
            yield
        except SpecollamaError as error:
            self._recorder.fail(str(error))
            raise
        finally:
            trace.add(self._recorder)

    def _note(self, event: Event) -> None:
        log_event(event)
        if self._recorder:
            self._recorder.event(event)

    def _with_overrides(self, overrides: Overrides) -> Pair:
        try:
            return self.entry.pair.with_overrides(**overrides)
        except UsageError as error:
            raise ApiError(400, str(error)) from error

    async def _plan(self, pair: Pair, parsed: ParsedRequest) -> Plan:
        """Plan the reply. Raises NotSpeculated if the target's own server has to answer."""
        if parsed.input is None:
            raise NotSpeculated(parsed.obstacle or "")
        try:
            plan = await pair.make_plan(parsed.input)
        except SpecollamaError as error:
            if pair.is_without_ollama:
                raise
            raise NotSpeculated(str(error)) from error  # the target's own server may still be able to answer
        if busy := plan.why_busy(self.entry.slots):
            raise NotSpeculated(busy)
        return plan

    async def _speculated(self, pair: Pair, plan: Plan) -> AsyncGenerator[Chunk, None]:
        """Yield the chunks of a planned reply."""
        prepared = perf_counter_ns() - self._began
        self.stats.route = plan.route
        replies: list[Reply] = []
        with plan.hold_slots(self.entry.slots):
            async with aclosing(self._replies(plan, prepared)) as events:
                async for reply in events:
                    if self.is_streaming:
                        yield self._with_counters(reply.body()) if reply.done else reply.body()
                    else:
                        replies.append(reply)
        if not self.is_streaming:
            yield self._with_counters(join_replies(replies).body())

    async def _replies(self, plan: Plan, prepared: int) -> AsyncGenerator[Reply, None]:
        """Yield the reply in Ollama's types. `prepared`: nanoseconds until it was planned."""
        writer, text, first = ReplyWriter(str(self.body["model"]), self.chat), "", 0
        observer = self._recorder.round if self._recorder else None
        async with aclosing(plan.events(observer, lambda: self.entry.slots.fair_share)) as events:
            async for event in events:
                if isinstance(event, Done):
                    self.stats = event.stats
                    self._time(first)
                self._note(event)
                if isinstance(event, Text):
                    first = first or perf_counter_ns() - self._began
                    text += event.text
                    yield writer.text(event)
                elif isinstance(event, ToolCalls):
                    yield writer.calls(event)
                elif isinstance(event, Done):
                    yield writer.done(event, prepared, None if self.chat else plan.context_tokens(text))

    async def _plain(self, pair: Pair, why: NotSpeculated) -> AsyncGenerator[Chunk, None]:
        """Forward the answer of the target's server. Only the model's name and the final counters change."""
        if pair.is_without_ollama:
            yield self._without_server(why.reason)
            return
        self.stats, settings, first = Stats(route=Route.PLAIN, reason=why.reason), pair.settings, 0
        body = upstream_body(self.body, settings.target.model, settings.options, settings.keep_alive)
        plan = PlainPlan(why, pair.target_server, body)
        self._note(Status(on=False, detail=why.reason))
        with plan.hold_slots(self.entry.slots):
            async with aclosing(plan.chunks("/api/chat" if self.chat else "/api/generate")) as chunks:
                async for chunk in chunks:
                    first = first or perf_counter_ns() - self._began
                    for text in _texts(chunk):
                        self._note(text)
                    if "model" in chunk:
                        chunk["model"] = self.body["model"]
                    if chunk.get("done"):
                        self.stats.prompt_eval_count = chunk.get("prompt_eval_count", 0)
                        self.stats.eval_count = self.stats.plain = chunk.get("eval_count", 0)
                        self._time(first)
                        self._note(Done(_reason(chunk), self.stats))
                        chunk = self._with_counters(chunk)
                    yield chunk

    def _without_server(self, reason: str) -> Chunk:
        """Answer a load request for a target without an Ollama server. There is nothing to load in advance."""
        if self.body.get("messages" if self.chat else "prompt"):
            raise ApiError(400, f"{self.entry.settings.target} isn't on an Ollama, which alone could do this: {reason}")
        return ReplyWriter(str(self.body["model"]), self.chat).loaded().body()

    def _time(self, first: int) -> None:
        self.stats.first_token_duration, self.stats.total_duration = first, perf_counter_ns() - self._began

    def _with_counters(self, chunk: Chunk) -> Chunk:
        return {**chunk, "specollama": {"pair": self.entry.name, **stats_object(self.stats)}}


def _texts(chunk: Chunk) -> Iterator[Text]:
    """Yield the thinking and answer text of one chunk from the target's server."""
    message = chunk.get("message") or chunk
    for name, thinking in (("thinking", True), ("content" if message is not chunk else "response", False)):
        if text := message.get(name):
            yield Text(str(text), Origin.PLAIN, thinking=thinking)


def _reason(chunk: Chunk) -> DoneReason:
    return DoneReason.LENGTH if chunk.get("done_reason") == "length" else DoneReason.STOP
