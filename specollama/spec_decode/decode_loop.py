"""Decoding loop: draft, verify, emit the accepted prefix, adapt the lookahead (Leviathan et al. 2023, algorithm 1)."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Callable, Iterator, Sequence
from contextlib import aclosing
from dataclasses import dataclass, field
from itertools import accumulate
from random import Random
from time import perf_counter_ns

from specollama.errors import RunError
from specollama.spec_decode.acceptance import truncate_result, verify
from specollama.spec_decode.events import Done, Event, Status, Text
from specollama.spec_decode.interfaces import Drafter, Target
from specollama.spec_decode.lookahead import Lookahead, SpeculationMonitor
from specollama.spec_decode.metrics import Stats
from specollama.spec_decode.stopping_criteria import StoppingCriteria
from specollama.spec_decode.types import (
    AcceptanceMethod,
    DoneReason,
    Draft,
    Origin,
    OutputToken,
    RoundRecord,
    SamplingOptions,
    TargetContinuation,
    Token,
    VerifyResult,
)

_TokenTag = tuple[
    OutputToken, int, float | None
]  # the emitted token, its round, and the drafter's confidence at its position

RoundObserver = Callable[[RoundRecord], None]
"""Callback that receives each round as soon as it is verified."""


@dataclass(slots=True)
class SpeculativeDecoder:
    """Generates one reply with speculative decoding.

    `prompt` is the rendered prompt. `rule` is never AUTO. Close the generator of `events` to stop the reply; the code
    that created the drafter and the target closes their requests.
    """

    prompt: str
    target: Target
    drafter: Drafter
    lookahead: Lookahead
    rule: AcceptanceMethod
    options: SamplingOptions
    stats: Stats
    monitor: SpeculationMonitor | None = None  # None: never stop drafting early
    random: Random = field(default_factory=Random)
    observer: RoundObserver | None = None
    _text: str = field(init=False)  # the prompt and all emitted text, text held back for stop strings included
    _stopper: StoppingCriteria[_TokenTag] = field(init=False)

    def __post_init__(self) -> None:
        limit = self.options.num_predict if self.options.num_predict > 0 else None
        self._text = self.prompt
        self._stopper = StoppingCriteria(self.options.stop, limit)

    async def events(self) -> AsyncGenerator[Event, None]:
        """Yield the reply: Text per emitted token, a Status if speculation ends early, and Done.

        Raises RunError when the target fails; the events yielded before remain valid.
        """
        while self._stopper.reason is None:
            began = perf_counter_ns()
            try:
                draft = await self._propose()
            except RunError as error:
                why: str | None = f"the draft failed: {error}"
            else:
                drafting = (perf_counter_ns() - began) / 1e9
                draft, verdict, forecast = await self._score(draft, drafting)
                for event in self._emit(draft, verdict, forecast):
                    yield event
                if self._stopper.reason is not None:
                    break
                continuation = await self._commit(verdict)
                for written in self._continue(continuation):
                    yield written
                why = self._stop_reason(verdict, continuation, perf_counter_ns() - began)
            if why is not None and self._stopper.reason is None:
                self.stats.notices.append(why)
                async with aclosing(self._plain_rest(why)) as rest:
                    async for plain_event in rest:
                        yield plain_event
        assert self._stopper.reason is not None
        yield Done(self._stopper.reason, self.stats)

    async def plain_events(self, why: str) -> AsyncGenerator[Event, None]:
        """Yield the reply without speculation, for the reason `why`: a Status, Text, and Done."""
        self.stats.reason = why
        async with aclosing(self._plain_rest(why)) as rest:
            async for event in rest:
                yield event
        assert self._stopper.reason is not None
        yield Done(self._stopper.reason, self.stats)

    def _stop_reason(self, verdict: VerifyResult, continuation: TargetContinuation, duration: int) -> str | None:
        """Reason to decode the rest of the reply without drafts, or None. `duration`: nanoseconds of this round."""
        if continuation.lost:
            return continuation.reason
        if self.monitor is None:
            return None
        tokens = len(verdict.emitted) + continuation.sampled
        self.monitor.observe(verdict, tokens, duration / 1e9)
        return self.monitor.stop_reason()

    async def _propose(self) -> Draft:
        """Draft tokens, one fewer than the token limit allows: the bonus or recovered token needs a place too."""
        remaining = self._stopper.remaining
        count = (
            self.lookahead.max_draft_tokens()
            if remaining is None
            else min(self.lookahead.max_draft_tokens(), remaining - 1)
        )
        if count <= 0:
            return Draft()
        began = perf_counter_ns()
        draft = await self.drafter.propose(self._text, count)
        self.stats.draft_requests += 1
        self.stats.draft_duration += perf_counter_ns() - began
        return draft

    async def _score(self, proposed: Draft, drafting: float) -> tuple[Draft, VerifyResult, Sequence[float]]:
        """Score the draft. Returns the tokens sent, the verdict, and the forecast acceptance probabilities.

        `drafting`: seconds that the draft took.
        """
        draft = proposed.first(self.lookahead.verify_length(proposed))
        began = perf_counter_ns()
        scored = await self.target.score(draft)
        scoring = perf_counter_ns() - began
        self.stats.score_duration += scoring
        self.stats.rows += scored.rows_requested
        self.stats.prompt_read += scored.prefilled_tokens
        verdict = verify(draft, scored, self.rule, self.random)
        forecast = self.lookahead.accept_probabilities(draft)
        done = RoundRecord(proposed, verdict, drafting, scoring / 1e9, scored.prefilled_tokens)
        self.lookahead.learn(done)
        if self.observer:
            self.observer(done)
        self.drafter.learn(verdict)
        return draft, verdict, forecast

    def _emit(self, draft: Draft, verdict: VerifyResult, forecast: Sequence[float]) -> Iterator[Text]:
        """Yield and count the round's tokens, up to the one that ends the reply."""
        number, used = self.stats.rounds + 1 if verdict.drafted else 0, 0
        sure, offset = _confidence_by_offset(draft), 0
        for emitted in verdict.emitted:
            tag = (emitted, number, sure.get(offset))
            used, offset = used + 1, offset + len(emitted.token.text)
            self._text += emitted.token.text
            yield from self._visible_text(self._stopper.add(emitted.token.text, tag))
            if self._stopper.reason is not None:
                break
        kept = truncate_result(verdict, draft, used) if self._stopper.reason is not None else verdict
        self.stats.record(kept, forecast)
        self.stats.eval_count += used + kept.end
        if verdict.end and self._stopper.reason is None:
            yield from self._visible_text(self._stopper.flush())

    async def _commit(self, verdict: VerifyResult) -> TargetContinuation:
        began = perf_counter_ns()
        continuation = await self.target.commit(verdict, self._stopper.remaining)
        self.stats.score_duration += perf_counter_ns() - began
        self.stats.extensions += continuation.extensions
        stuck = not (verdict.emitted or continuation.tokens or continuation.end or continuation.lost)
        if stuck:
            raise RunError("the target gave no token: the reply can't go on")
        return continuation

    def _continue(self, continuation: TargetContinuation) -> Iterator[Text | Status]:
        """Yield the tokens that the target decoded alone, and a Status if the reply ended abnormally.

        The count of sampled tokens without text is added to the first token.
        """
        extra = continuation.sampled - len(continuation.tokens)
        if not continuation.tokens:
            self.stats.eval_count += extra
        for token in continuation.tokens:
            self._text += token.text
            self.stats.plain += 1
            tag = (OutputToken(token, Origin.PLAIN), 0, None)
            yield from self._visible_text(self._stopper.add(token.text, tag, 1 + extra))
            self.stats.eval_count += 1 + extra
            extra = 0
            if self._stopper.reason is not None:
                return
        if continuation.end is not None:
            self.stats.eval_count += continuation.end is DoneReason.STOP
            yield from self._visible_text(self._stopper.flush(continuation.end))
            if continuation.reason:
                self.stats.notices.append(continuation.reason)
                yield Status(on=False, detail=continuation.reason)

    async def _plain_rest(self, why: str) -> AsyncGenerator[Event, None]:
        """Yield a Status with the reason, then the rest of the reply as one plain stream."""
        yield Status(on=False, detail=why)
        async with aclosing(self.target.stream(self._stopper.remaining)) as stream:
            async for item in stream:
                written = TargetContinuation((item,), sampled=1) if isinstance(item, Token) else item
                for event in self._continue(written):
                    yield event
                if self._stopper.reason is not None:
                    return

    def _visible_text(self, pieces: list[tuple[str, _TokenTag]]) -> Iterator[Text]:
        for text, (emitted, number, sure) in pieces:
            yield Text(text, emitted.origin, number, emitted.token.logprob, emitted.top, confidence=sure)


def _confidence_by_offset(draft: Draft) -> dict[int, float]:
    """The drafter's confidence by offset into the draft's text, in characters."""
    starts = accumulate((len(token.text) for token in draft.tokens), initial=0)
    return dict(zip(starts, draft.confidence, strict=False))
