"""Several servers of one model as one engine: rows are spread over them, and one that fails is left out for a while."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Awaitable, Callable, Mapping, Sequence
from contextlib import aclosing
from dataclasses import dataclass, replace
from itertools import pairwise
from time import monotonic
from typing import Any, TypeVar

from specollama.backends.engines.base import (
    DrawSettings,
    Engine,
    EngineInfo,
    PromptPosition,
    SampledToken,
    ScoringRequest,
    StreamPiece,
)
from specollama.errors import AnotherModel, BrokenReply, EndpointError, Refused, Unreachable

_Answer = TypeVar("_Answer")

_FIRST_REST = 5.0  # seconds that a failed server is left alone
_LONGEST_REST = 300.0
_SAMPLE = "def f(x):\n    return x + 1  # naïve café, 12345, 日本語 🙂"


@dataclass(slots=True)
class _Replica:
    engine: Engine
    checked: bool = False
    failures: int = 0
    rests_until: float = 0.0

    def failed(self, now: float) -> None:
        self.checked = False
        self.failures += 1
        self.rests_until = now + min(_LONGEST_REST, _FIRST_REST * 2 ** (self.failures - 1))

    def answered(self) -> None:
        self.failures, self.rests_until = 0, 0.0


class Replicas:
    """Takes turns, and for rows all that are well. Raises EndpointError when none is left."""

    def __init__(self, engines: Sequence[Engine], clock: Callable[[], float] = monotonic) -> None:
        self._all = [_Replica(engine) for engine in engines]
        self._clock = clock
        self._turn = 0
        self._sample: list[int] = []
        self.url = ", ".join(engine.url for engine in engines)
        self.capabilities = engines[0].capabilities

    async def info(self) -> EngineInfo:
        """Raises EndpointError where one serves something else; one that fails otherwise may be well later."""
        found = await asyncio.gather(*(self._look(replica) for replica in self._all))
        there = [facts for facts in found if isinstance(facts, EngineInfo)]
        if not there:
            raise next(error for error in found if isinstance(error, EndpointError))
        contexts = [facts.context_length for facts in there if facts.context_length is not None]
        slots = [facts.slots for facts in there]
        return replace(
            there[0],
            context_length=min(contexts, default=None),
            slots=None if None in slots else sum(number or 0 for number in slots),
        )

    async def _look(self, replica: _Replica) -> EngineInfo | EndpointError:
        try:
            return await self._check(replica)
        except (Unreachable, Refused, BrokenReply) as error:
            self._note(replica, error)
            return error

    async def _check(self, replica: _Replica) -> EngineInfo:
        """That it serves what the others do; again after each failure, when it may have been started with another."""
        facts = await replica.engine.info()
        tokens = await replica.engine.tokenize(_SAMPLE, whole=False)
        self._sample = self._sample or tokens
        if tokens != self._sample:
            url = replica.engine.url
            raise AnotherModel(f"{url} serves another model than the pair's other servers: its tokens differ", url=url)
        replica.checked = True
        return facts

    async def tokenize(self, text: str, *, whole: bool) -> list[int]:
        return await self._any(lambda engine: engine.tokenize(text, whole=whole))

    async def detokenize(self, runs: Sequence[Sequence[int]]) -> list[str]:
        return await self._any(lambda engine: engine.detokenize(runs))

    async def render(self, messages: Sequence[Mapping[str, Any]]) -> tuple[list[int], str]:
        return await self._any(lambda engine: engine.render(messages))

    async def count_chat_tokens(self, messages: Sequence[Mapping[str, Any]]) -> int:
        return await self._any(lambda engine: engine.count_chat_tokens(messages))

    async def score_positions(self, request: ScoringRequest, draws: DrawSettings) -> list[SampledToken | None]:
        """Whole where one pass gives them all, else in as many parts as there are servers."""
        if self.capabilities.one_pass and draws.options.greedy:
            return await self._any(lambda engine: engine.score_positions(request, draws))
        well = self._well()
        parts = _parts(request, len(well))
        start = request.first % len(well)  # rows that are asked one by one are spread, too, each always to the same
        asked = zip([*well[start:], *well[:start]], parts, strict=False)
        answers = await asyncio.gather(*(self._part(replica, part, draws) for replica, part in asked))
        return [row for answer in answers for row in answer]

    async def _part(self, replica: _Replica, part: ScoringRequest, draws: DrawSettings) -> list[SampledToken | None]:
        """By this server, or else by another one."""
        return await self._any(lambda engine: engine.score_positions(part, draws), first=replica)

    def stream(
        self, place: PromptPosition, limit: int | None, draws: DrawSettings
    ) -> AsyncGenerator[StreamPiece, None]:
        return self._streamed(lambda engine: engine.stream(place, limit, draws))

    def chat(
        self, messages: Sequence[Mapping[str, Any]], limit: int | None, draws: DrawSettings
    ) -> AsyncGenerator[StreamPiece, None]:
        return self._streamed(lambda engine: engine.chat(messages, limit, draws))

    async def _streamed(
        self, ask: Callable[[Engine], AsyncGenerator[StreamPiece, None]]
    ) -> AsyncGenerator[StreamPiece, None]:
        """From the first that begins; once a text was shown another server can't take over."""
        shown = False
        for replica, last in self._in_turn():
            try:
                if not replica.checked:
                    await self._check(replica)
                async with aclosing(ask(replica.engine)) as stream:
                    async for written in stream:
                        shown = True
                        yield written
                replica.answered()
                return
            except EndpointError as error:
                self._note(replica, error)
                if shown or last:
                    raise

    async def _any(self, ask: Callable[[Engine], Awaitable[_Answer]], first: _Replica | None = None) -> _Answer:
        for replica, last in self._in_turn(first):
            try:
                if not replica.checked:
                    await self._check(replica)
                answer = await ask(replica.engine)
            except EndpointError as error:
                self._note(replica, error)
                if last:
                    raise
            else:
                replica.answered()
                return answer
        raise AssertionError("there is a last one")

    def _note(self, replica: _Replica, error: EndpointError) -> None:
        if isinstance(error, Refused) and error.status < 500:
            raise error  # asked of another it would be refused again
        replica.failed(self._clock())

    def _in_turn(self, first: _Replica | None = None) -> list[tuple[_Replica, bool]]:
        """Those that are well, another one first each time, then the others; with each whether it is the last."""
        well = self._well()
        self._turn += 1
        start = well.index(first) if first in well else self._turn % len(well)
        ordered = well[start:] + well[:start]
        ordered += [replica for replica in self._all if replica not in ordered]
        return [(replica, replica is ordered[-1]) for replica in ordered]

    def _well(self) -> list[_Replica]:
        """Those that don't rest after a failure; all of them where that is every one."""
        now = self._clock()
        return [replica for replica in self._all if replica.rests_until <= now] or list(self._all)


def _parts(request: ScoringRequest, servers: int) -> list[ScoringRequest]:
    """The rows in contiguous parts of about equal size, none empty."""
    rows = request.end - request.first
    count = min(servers, rows)
    edges = [request.first + rows * part // count for part in range(count + 1)]
    return [replace(request, first=first, end=end) for first, end in pairwise(edges)]
