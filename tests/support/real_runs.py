"""The first tokens of many replies of served models: speculated, and by the target alone."""

from __future__ import annotations

import asyncio
import os
from collections import Counter
from collections.abc import AsyncGenerator, Awaitable, Callable
from dataclasses import dataclass, field, replace
from random import Random

from specollama.backends.ollama.client import OllamaServer
from specollama.backends.ollama.drafter import OllamaDrafter
from specollama.backends.ollama.request_bodies import RequestTemplate
from specollama.backends.ollama.target import ParallelTarget
from specollama.spec_decode.decode_loop import SpeculativeDecoder
from specollama.spec_decode.events import Done, Text
from specollama.spec_decode.interfaces import Drafter, Target
from specollama.spec_decode.lookahead import FixedLookahead
from specollama.spec_decode.metrics import Stats
from specollama.spec_decode.retokenization import ExactPath, Tokenizer
from specollama.spec_decode.types import (
    AcceptanceMethod,
    DoneReason,
    Draft,
    SamplingOptions,
    TargetContinuation,
    TargetScores,
    Token,
    VerifyResult,
)

DRAWS = int(os.environ.get("SPECOLLAMA_TEST_DRAWS", "750"))
"""Replies each way in one test, of which each rule has two; fewer find less."""

_AT_ONCE = 8  # replies
_END = "\x04"  # stands for the target's own end in what is compared


@dataclass(slots=True)
class Sample:
    """What was drawn, and how: `rows` counts the target's rows by whether p was known, or the draw hidden."""

    texts: Counter[str] = field(default_factory=Counter)
    stats: list[Stats] = field(default_factory=list)
    rows: Counter[str] = field(default_factory=Counter)

    def __str__(self) -> str:
        accepted, tested = sum(each.accepted for each in self.stats), sum(each.tested for each in self.stats)
        shares = ", ".join(f"{kind} {count / self.rows.total():.2f}" for kind, count in sorted(self.rows.items()))
        extensions = sum(each.extensions for each in self.stats)
        return f"acceptance {accepted}/{tested} = {accepted / max(tested, 1):.3f}; rows: {shares}; {extensions=}"


@dataclass(frozen=True, slots=True)
class Scene:
    """One prompt to a pair. `draft_options` None: the target's, as a pair has it."""

    server: OllamaServer
    vocabulary: Tokenizer
    prompt: str
    options: SamplingOptions
    rule: AcceptanceMethod = AcceptanceMethod.REJECTION
    target: str = "target"
    draft: str = "draft"
    draft_options: SamplingOptions | None = None
    target_class: type[ParallelTarget] = ParallelTarget
    drafter_class: type[OllamaDrafter] = OllamaDrafter

    async def speculated(self, draws: int, base: int) -> Sample:
        """So many replies, each with seeds of its own, made from `base`."""
        sample = Sample()

        async def reply(random: Random) -> str:
            texts, run = list[str](), self._speculation(random, sample.rows)
            sample.stats.append(run.stats)
            async for event in run.events():
                if isinstance(event, Text):
                    texts.append(event.text)
                if isinstance(event, Done) and event.reason is DoneReason.STOP:
                    texts.append(_END)
            return "".join(texts)

        sample.texts = await _many(reply, draws, base)
        return sample

    async def alone(self, draws: int, base: int) -> Sample:
        """So many replies of the target alone."""
        requests, sample = RequestTemplate(self.target, self.options), Sample()

        async def reply(random: Random) -> str:
            body = requests.raw(self.prompt, num_predict=self.options.num_predict, seed=random.getrandbits(31))
            answer = await self.server.generate(body | {"logprobs": False, "top_logprobs": 0})
            return answer.response + (_END if answer.done_reason == "stop" else "")

        sample.texts = await _many(reply, draws, base)
        return sample

    def _speculation(self, random: Random, rows: Counter[str]) -> SpeculativeDecoder:
        """As plan.py puts it together."""
        target = self.target_class(
            self.server,
            RequestTemplate(self.target, self.options),
            ExactPath(self.prompt, self.vocabulary),
            rule=self.rule,
            seed=random.getrandbits(31),
            context_length=1024,
        )
        return SpeculativeDecoder(
            prompt=self.prompt,
            target=_Counted(target, rows),
            drafter=self._drafter(random),
            lookahead=FixedLookahead(2),
            rule=self.rule,
            options=self.options,
            stats=Stats(),
            random=Random(random.getrandbits(64)),
        )

    def _drafter(self, random: Random) -> Drafter:
        """A draft with options of its own samples by them under any rule; a pair's, under match, is greedy."""
        return self.drafter_class(
            self.server,
            RequestTemplate(self.draft, self.draft_options or self.options),
            rule=AcceptanceMethod.REJECTION if self.draft_options else self.rule,
            seed=random.getrandbits(31),
            vocabulary=self.vocabulary,
        )


class _Counted:
    """A target whose rows are counted."""

    def __init__(self, target: Target, rows: Counter[str]) -> None:
        self._target = target
        self._rows = rows

    async def score(self, draft: Draft) -> TargetScores:
        scored = await self._target.score(draft)
        for row in scored.rows.values():
            kind = "p known" if row.p else "end" if row.end else "hidden" if row.hidden else "p unknown"
            self._rows[kind] += 1
        return scored

    async def commit(self, verdict: VerifyResult, limit: int | None) -> TargetContinuation:
        return await self._target.commit(verdict, limit)

    def stream(self, limit: int | None) -> AsyncGenerator[Token | DoneReason, None]:
        return self._target.stream(limit)


def hotter(options: SamplingOptions) -> SamplingOptions:
    """A draft that is wrong on purpose."""
    return replace(options, temperature=2)


async def _many(reply: Callable[[Random], Awaitable[str]], draws: int, base: int) -> Counter[str]:
    found, left = Counter[str](), iter(range(draws))

    async def work() -> None:
        for number in left:
            found[await reply(Random(f"{base} {number}"))] += 1

    await asyncio.gather(*(work() for _ in range(_AT_ONCE)))
    return found
