"""Detects trouble of the servers from the counters in replies: models reloaded or evicted, prompts prefilled again."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator
from dataclasses import dataclass, field, replace

from specollama.backends.ollama.model_info import ModelInfo
from specollama.backends.ollama.model_name import full_name
from specollama.backends.ollama.schema import GenerateReply
from specollama.spec_decode.interfaces import Target
from specollama.spec_decode.types import Draft, TargetContinuation, TargetScores, Token, VerifyResult

_LOADED_ANEW = 1_000_000_000  # nanoseconds; a longer load_duration means that the model was loaded
_LONG_PROMPT = 256  # tokens; prefilling a shorter prompt again costs little


@dataclass(slots=True)
class ServerWatch:
    """Watches the models of one reply. The first round may load them, and each slot may prefill the prompt once.

    `slots`: how many slots may have to prefill it. `decode_seconds`: seconds for one token of the target without
    speculation; None: the first reply with two tokens or more shows it.
    """

    target: ModelInfo
    draft: ModelInfo | None  # None: no model drafts
    slots: int
    decode_seconds: float | None = None
    _replied: set[str] = field(default_factory=set)  # names of the models that have replied
    _replied_earlier: set[str] = field(default_factory=set)  # those that replied in an earlier round
    _reloaded: ModelInfo | None = None  # a model that was loaded during the reply
    _full_prefills: int = 0  # replies for which the server prefilled the whole prompt

    def note_draft(self, reply: GenerateReply) -> None:
        """Take the counters of a reply of the draft model."""
        assert self.draft
        self._note_load(self.draft, reply)

    def note_target(self, reply: GenerateReply) -> None:
        """Take the counters of a reply of the target."""
        self._note_load(self.target, reply)
        if self.decode_seconds is None and (beyond_first := (reply.eval_count or 1) - 1) > 0:
            self.decode_seconds = (reply.eval_duration or 0) / beyond_first / 1e9
        tokens, duration = reply.prompt_eval_count or 0, (reply.prompt_eval_duration or 0) / 1e9
        self._full_prefills += tokens > _LONG_PROMPT and duration > self._cheap_prefill_seconds(tokens)

    def _cheap_prefill_seconds(self, tokens: int) -> float:
        """A bound in seconds between prefilling a few of these tokens and prefilling all of them.

        The first reply's duration can't serve as the bound: its slot may hold the prompt from an earlier reply. Rows
        share passes, so each row takes as long as all rows together.
        """
        if self.decode_seconds is None:
            return max(1.0, 0.002 * tokens)
        return max(24.0, tokens / 16) * self.decode_seconds

    def _note_load(self, model: ModelInfo, reply: GenerateReply) -> None:
        if (reply.load_duration or 0) > _LOADED_ANEW and model.name in self._replied_earlier:
            self._reloaded = model
        self._replied.add(model.name)

    async def stop_reason(self) -> str | None:
        """Why speculation should stop after this round; None if nothing is wrong.

        Requests /api/ps only if a model was reloaded. Raises EndpointError when that fails.
        """
        self._replied_earlier |= self._replied
        if self._full_prefills > 3 * self.slots:
            return "the server reads the whole prompt again and again: its slots don't keep it"
        if self._reloaded is None:
            return None
        return await self._explain(self._reloaded)

    async def _explain(self, model: ModelInfo) -> str:
        if self.draft and self.draft.server.url == self.target.server.url:
            both = await asyncio.gather(is_loaded(self.draft), is_loaded(self.target))
            if not all(both):
                return f"draft and target evict each other on {model.server.url}: its memory doesn't hold both"
        return f"{model.name} was loaded anew on {model.server.url}: another client uses it with other options"


class MonitoredTarget:
    """A target that ends speculation (`lost`) once its watch finds trouble."""

    def __init__(self, target: Target, watch: ServerWatch) -> None:
        self._target = target
        self._watch = watch

    async def score(self, draft: Draft) -> TargetScores:
        return await self._target.score(draft)

    async def commit(self, verdict: VerifyResult, limit: int | None) -> TargetContinuation:
        continuation = await self._target.commit(verdict, limit)
        if continuation.lost or continuation.end is not None:
            return continuation
        why = await self._watch.stop_reason()
        return continuation if why is None else replace(continuation, lost=True, reason=why)

    def stream(self, limit: int | None) -> AsyncGenerator[Token | TargetContinuation, None]:
        return self._target.stream(limit)


async def is_loaded(model: ModelInfo) -> bool:
    """Whether the server has the model in memory, by /api/ps. Raises EndpointError."""
    running = (await model.server.ps()).models
    return any(entry.digest == model.digest or full_name(entry.name) == full_name(model.name) for entry in running)
