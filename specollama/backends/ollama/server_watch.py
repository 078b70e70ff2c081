"""What replies tell in passing about the servers: models loaded anew, evicted, or prompts read again and again."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator
from dataclasses import dataclass, field, replace

from specollama.backends.ollama.model_info import ModelInfo
from specollama.backends.ollama.model_name import full_name
from specollama.backends.ollama.schema import GenerateReply
from specollama.spec_decode.interfaces import Target
from specollama.spec_decode.types import Draft, TargetContinuation, TargetScores, Token, VerifyResult

_LOADED_ANEW = 1_000_000_000  # nanoseconds of load_duration that no look at a loaded model takes
_LONG_PROMPT = 256  # tokens; reading a shorter one again costs little


@dataclass(slots=True)
class ServerWatch:
    """One reply's watch over its models. The first round may load them, and each slot reads the prompt once.

    `slots`: how many slots may have to read it. `decode_seconds`: seconds that the target takes for a token alone,
    where that is known before.
    """

    target: ModelInfo
    draft: ModelInfo | None  # None: no model drafts
    slots: int
    decode_seconds: float | None = None
    _noted: set[str] = field(default_factory=set)  # models that have replied
    _met: set[str] = field(default_factory=set)  # those that have in an earlier round
    _suspect: ModelInfo | None = None
    _read_whole: int = 0  # replies for which the whole prompt was read

    def note_draft(self, reply: GenerateReply) -> None:
        """A reply of the draft model."""
        assert self.draft
        self._note_load(self.draft, reply)

    def note_target(self, reply: GenerateReply) -> None:
        """A reply of the target."""
        self._note_load(self.target, reply)
        if self.decode_seconds is None and (beyond_first := (reply.eval_count or 1) - 1) > 0:
            self.decode_seconds = (reply.eval_duration or 0) / beyond_first / 1e9
        tokens, duration = reply.prompt_eval_count or 0, (reply.prompt_eval_duration or 0) / 1e9
        self._read_whole += tokens > _LONG_PROMPT and duration > self._cheap_prefill_seconds(tokens)

    def _cheap_prefill_seconds(self, tokens: int) -> float:
        """Seconds: less than reading so many tokens takes, more than a row whose slot holds all but a few of them.

        Not what the first reply took: its slot may hold the prompt from an earlier one. Rows share passes, so that
        each takes as long as all of them.
        """
        if self.decode_seconds is None:
            return max(1.0, 0.002 * tokens)
        return max(24.0, tokens / 16) * self.decode_seconds

    def _note_load(self, model: ModelInfo, reply: GenerateReply) -> None:
        if (reply.load_duration or 0) > _LOADED_ANEW and model.name in self._met:
            self._suspect = model
        self._noted.add(model.name)

    async def stop_reason(self) -> str | None:
        """After a round: why it is better not to go on speculating; None while all is well.

        Asks /api/ps only on suspicion.
        """
        self._met |= self._noted
        if self._read_whole > 3 * self.slots:
            return "the server reads the whole prompt again and again: its slots don't keep it"
        if self._suspect is None:
            return None
        return await self._explain(self._suspect)

    async def _explain(self, model: ModelInfo) -> str:
        if self.draft and self.draft.server.url == self.target.server.url:
            both = await asyncio.gather(is_loaded(self.draft), is_loaded(self.target))
            if not all(both):
                return f"draft and target evict each other on {model.server.url}: its memory doesn't hold both"
        return f"{model.name} was loaded anew on {model.server.url}: another client uses it with other options"


class MonitoredTarget:
    """A target that stops being asked once the watch finds trouble."""

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
    """Whether the server has the model in memory."""
    running = (await model.server.ps()).models
    return any(entry.digest == model.digest or full_name(entry.name) == full_name(model.name) for entry in running)
