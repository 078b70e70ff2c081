"""Answers one request in Ollama's format: speculated if that is lossless, otherwise by the target's own server."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Iterator, Mapping
from contextlib import AbstractContextManager, aclosing, contextmanager, nullcontext
from dataclasses import dataclass, field
from time import perf_counter_ns
from typing import TYPE_CHECKING, Any

from specollama.backends.ollama.schema import Reply
from specollama.config.settings import ModelRef, Overrides
from specollama.errors import ApiError, SpecollamaError, UsageError
from specollama.pairs.decision_log import log_event
from specollama.pairs.ollama_request import ParsedRequest, parse_request, upstream_body
from specollama.pairs.ollama_response import ReplyWriter, join_replies
from specollama.pairs.pair import AnyPlan, Pair
from specollama.pairs.pool import PairEntry
from specollama.pairs.report import stats_object
from specollama.pairs.routes.lanes import OllamaPlan
from specollama.pairs.routes.local import LocalPlan
from specollama.pairs.slots import SlotPool
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
        asked = parse_request(self.body, chat=self.chat)
        pair = self._with_overrides(asked.overrides)
        plan = await self._plan(pair, asked)
        reason = plan if isinstance(plan, str) else None
        if not isinstance(plan, str):
            async with aclosing(self._speculated(pair, plan)) as speculated:
                async for chunk in speculated:
                    if isinstance(chunk, str):
                        reason = chunk
                        break
                    yield chunk
        if reason is not None and pair.is_without_ollama:
            yield self._without_server(reason)
        elif reason is not None:
            # Use the seed of the first attempt: a second, independent sample would bias the distribution.
            seed = plan.first_seed if isinstance(plan, OllamaPlan) else None
            async with aclosing(self._plain(pair, reason, seed)) as plain:
                async for chunk in plain:
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

    async def _plan(self, pair: Pair, asked: ParsedRequest) -> AnyPlan | str:
        if asked.input is None:
            return asked.obstacle or ""
        try:
            plan = await pair.make_plan(asked.input)
        except SpecollamaError as error:
            if pair.is_without_ollama:
                raise
            return str(error)  # the target's own server may still be able to answer
        return self._busy_reason(pair, plan) or plan

    def _busy_reason(self, pair: Pair, plan: AnyPlan | str) -> str | None:
        """The reason if a speculated reply would have to wait for lanes or models; None if it can start now."""
        if isinstance(plan, OllamaPlan) and plan.route is Route.LANES and not self.entry.slots.has_room:
            return "the target's lanes are taken by other replies"
        served = isinstance(pair.settings.target, ModelRef)
        if isinstance(plan, LocalPlan) and served and plan.models.reply_lock.locked():
            return "the models in process are at work on another reply"
        return None

    async def _speculated(self, pair: Pair, plan: AnyPlan) -> AsyncGenerator[Chunk | str, None]:
        """Yield the chunks of a speculated reply, or only a fallback reason."""
        prepared, lanes = perf_counter_ns() - self._began, self.entry.slots
        self.stats.route = plan.route
        replies: list[Reply] = []
        with _hold_slots(lanes, plan.route):
            async with aclosing(self._replies(pair, plan, prepared)) as events:
                async for reply in events:
                    if isinstance(reply, str):
                        yield reply
                        return
                    if self.is_streaming:
                        yield self._with_counters(reply.body()) if reply.done else reply.body()
                    else:
                        replies.append(reply)
        if not self.is_streaming:
            yield self._with_counters(join_replies(replies).body())

    async def _replies(self, pair: Pair, plan: AnyPlan, prepared: int) -> AsyncGenerator[Reply | str, None]:
        writer, written, first = ReplyWriter(str(self.body["model"]), self.chat), "", 0
        pair = pair.with_observer(self._recorder.round) if self._recorder else pair
        async with aclosing(pair.speculated_events(plan, lambda: self.entry.slots.fair_share)) as events:
            async for event in events:
                if isinstance(event, str):
                    yield event
                    continue
                if isinstance(event, Done):
                    self.stats = event.stats
                    self._time(first)
                self._note(event)
                if isinstance(event, Text):
                    first = first or perf_counter_ns() - self._began
                    written += event.text
                    yield writer.text(event)
                elif isinstance(event, ToolCalls):
                    yield writer.calls(event)
                elif isinstance(event, Done):
                    yield writer.done(event, prepared, None if self.chat else pair.context_tokens(plan, written))

    async def _plain(self, pair: Pair, reason: str, seed: int | None) -> AsyncGenerator[Chunk, None]:
        """Forward the answer of the target's server. Only the model's name and the final counters change."""
        self.stats, settings, first = Stats(route=Route.PLAIN, reason=reason), pair.settings, 0
        body = upstream_body(self.body, settings.target.model, settings.options, settings.keep_alive)
        self._note(Status(on=False, detail=reason))
        if seed is not None:
            body["options"] = {**body.get("options", {}), "seed": seed}
        with self.entry.slots.plain_reply():
            path = "/api/chat" if self.chat else "/api/generate"
            async with aclosing(pair.target_server.forward(path, body)) as chunks:
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


def _hold_slots(lanes: SlotPool, route: Route) -> AbstractContextManager[None]:
    """Context manager that reserves the server slots of a reply while it runs."""
    if route in (Route.LOCAL, Route.SCORING, Route.NATIVE):
        return nullcontext()
    return lanes.speculated_reply() if route is Route.LANES else lanes.plain_reply()
