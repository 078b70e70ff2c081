"""Public fake models with written-down distributions, for tests and for trying the loop without a server."""

from __future__ import annotations

import math
from collections.abc import AsyncGenerator, Callable, Mapping
from dataclasses import dataclass, replace
from random import Random

from specollama.spec_decode.acceptance import position_seed, renormalize_visible, sample_from
from specollama.spec_decode.sampler_support import support
from specollama.spec_decode.types import (
    Distribution,
    DoneReason,
    Draft,
    SamplingOptions,
    TargetContinuation,
    TargetRow,
    TargetScores,
    Token,
    VerifyResult,
)


@dataclass(frozen=True, slots=True)
class Hidden:
    """A draw without text of its own; `turns_into` is what the text shows once more was drawn."""

    turns_into: str


@dataclass(frozen=True, slots=True)
class End:
    """The end of the sequence."""


Outcome = str | Hidden | End

Script = Callable[[str], Mapping[Outcome, float]]
"""The raw probabilities of what may follow a reply so far; they add up to 1."""


def constant_script(table: Mapping[Outcome, float]) -> Script:
    """A script that says the same wherever it stands."""
    return lambda reply: table


def fixed_script(*tokens: str) -> Script:
    """A script that writes these tokens one after another and ends, whatever the text."""
    ends = [0]
    for token in tokens:
        ends.append(ends[-1] + len(token))

    def follow(reply: str) -> Mapping[Outcome, float]:
        place = ends.index(len(reply)) if len(reply) in ends else len(tokens)
        return {tokens[place]: 1.0} if place < len(tokens) else {End(): 1.0}

    return follow


@dataclass(slots=True)
class _Sampler:
    """What a server would show and draw at one place, under the options."""

    script: Script
    options: SamplingOptions
    shown: int  # how many of the most probable tokens are shown

    def entries(self, reply: str) -> list[tuple[Outcome, Token]]:
        """All that may be drawn, most probable first, with what is shown of it."""
        raw = [(drawn, p) for drawn, p in self.script(reply).items() if p > 0]
        raw.sort(key=lambda entry: -entry[1])
        return [(drawn, Token(drawn if isinstance(drawn, str) else "", math.log(p))) for drawn, p in raw]

    def draw(self, reply: str, random: Random) -> Outcome:
        entries = self.entries(reply)
        top_k = self.options.top_k if 0 < self.options.top_k < len(entries) else len(entries)
        kept = support([token for _, token in entries], replace(self.options, top_k=top_k))
        assert kept is not None, "a scripted model can't be sampled under these options"
        place = sample_from({str(index): weight for index, weight in enumerate(kept)}, random)
        return entries[int(place)][0]

    def distribution(self, reply: str) -> Distribution | None:
        top = self.top(reply)
        probabilities = support(top, self.options)
        if probabilities is None:
            return None
        return renormalize_visible(top, probabilities, frozenset(token.text for token in top if token.text))

    def top(self, reply: str) -> tuple[Token, ...]:
        return tuple(token for _, token in self.entries(reply)[: self.shown])


class ScriptedTarget:
    """A target that draws from a script. `seed` is the base of its position seeds."""

    def __init__(self, script: Script, options: SamplingOptions, seed: int, *, shown: int = 20) -> None:
        self._sampler = _Sampler(script, options, shown)
        self._seed = seed
        self._reply = ""
        self._drawn = 0  # tokens of the reply

    async def score(self, draft: Draft) -> TargetScores:
        rows, offset = {0: self._row(self._reply, 0)}, 0
        for place, token in enumerate(draft.tokens):
            offset += len(token.text)
            rows[offset] = self._row(self._reply + draft.text[:offset], place + 1)
        return TargetScores(rows, rows_requested=len(rows))

    async def commit(self, verdict: VerifyResult, limit: int | None) -> TargetContinuation:
        self._take(verdict)
        if not verdict.hidden:
            return TargetContinuation()
        drawn = self._draw(self._reply, 0)  # the same draw, with the same seed, seen further
        assert isinstance(drawn, Hidden)
        self._reply += drawn.turns_into
        self._drawn += 1
        return TargetContinuation((Token(drawn.turns_into),), sampled=1)

    async def stream(self, limit: int | None) -> AsyncGenerator[Token | TargetContinuation, None]:
        while limit is None or limit > 0:
            drawn = self._draw(self._reply, 0)
            if isinstance(drawn, End):
                yield TargetContinuation(end=DoneReason.STOP)
                return
            text = drawn.turns_into if isinstance(drawn, Hidden) else drawn
            self._reply, self._drawn = self._reply + text, self._drawn + 1
            yield Token(text)
            limit = None if limit is None else limit - 1
        yield TargetContinuation(end=DoneReason.LENGTH)

    def _take(self, verdict: VerifyResult) -> None:
        self._reply += "".join(emitted.token.text for emitted in verdict.emitted)
        self._drawn += len(verdict.emitted)

    def _row(self, reply: str, ahead: int) -> TargetRow:
        drawn = self._draw(reply, ahead)
        if not isinstance(drawn, str):
            return TargetRow(None, end=isinstance(drawn, End))
        return TargetRow(Token(drawn), top=self._sampler.top(reply), p=self._sampler.distribution(reply))

    def _draw(self, reply: str, ahead: int) -> Outcome:
        return self._sampler.draw(reply, Random(position_seed(self._seed, self._drawn + ahead)))


class ScriptedDrafter:
    """A draft model that draws from a script; `prompt` is what its texts begin with."""

    def __init__(
        self, script: Script, options: SamplingOptions, seed: int, *, prompt: str = "", shown: int = 20
    ) -> None:
        self._sampler = _Sampler(script, options, shown)
        self._random = Random(seed)
        self._prompt = prompt
        self.verdicts: list[VerifyResult] = []

    async def propose(self, text: str, count: int) -> Draft:
        reply, tokens, q = text.removeprefix(self._prompt), list[Token](), list[Distribution | None]()
        while len(tokens) < count:
            drawn = self._sampler.draw(reply, self._random)
            if not isinstance(drawn, str):
                break
            q.append(self._sampler.distribution(reply))
            tokens.append(Token(drawn))
            reply += drawn
        return Draft(tuple(tokens), tuple(q))

    def learn(self, verdict: VerifyResult) -> None:
        self.verdicts.append(verdict)
