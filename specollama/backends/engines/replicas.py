"""Several servers of one model as one engine: shares rows among them, and pauses a server that failed."""

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

_FIRST_REST = 5.0  # seconds without requests to a server after its first failure; doubles with each further one
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
    """Sends requests to the servers in turn, and shares rows among all available ones.

    A call raises EndpointError when the last server has failed.
    """

    def __init__(self, engines: Sequence[Engine], clock: Callable[[], float] = monotonic) -> None:
        self._all = [_Replica(engine) for engine in engines]
        self._clock = clock
        self._turn = 0
        self._sample: list[int] = []
        self.url = ", ".join(engine.url for engine in engines)
        self.capabilities = engines[0].capabilities

    async def info(self) -> EngineInfo:
        """The facts of all servers together: the smallest context, the sum of the slots.

        Raises EndpointError when one serves another model, or when none answers.
        """
        results = await asyncio.gather(*(self._look(replica) for replica in self._all))
        answered = [facts for facts in results if isinstance(facts, EngineInfo)]
        if not answered:
            raise next(error for error in results if isinstance(error, EndpointError))
        contexts = [facts.context_length for facts in answered if facts.context_length is not None]
        slots = [facts.slots for facts in answered]
        return replace(
            answered[0],
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
        """Check that a server has the same model as the others: by the tokens of a sample text.

        Runs again after each failure, because the server may have been restarted with another model.
        """
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
        """Score on one server if it needs one pass for all rows, otherwise in as many parts as there are servers."""
        if self.capabilities.one_pass and draws.options.greedy:
            return await self._any(lambda engine: engine.score_positions(request, draws))
        available = self._available()
        parts = _parts(request, len(available))
        start = request.first % len(available)  # shares single-row requests as well; a row keeps its server
        assigned = zip([*available[start:], *available[:start]], parts, strict=False)
        answers = await asyncio.gather(*(self._part(replica, part, draws) for replica, part in assigned))
        return [row for answer in answers for row in answer]

    async def _part(self, replica: _Replica, part: ScoringRequest, draws: DrawSettings) -> list[SampledToken | None]:
        """Score on this server, or on another one if it fails."""
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
        """Stream from the first server that answers. After the first piece no other server can take over."""
        started = False
        for replica, last in self._in_turn():
            try:
                if not replica.checked:
                    await self._check(replica)
                async with aclosing(ask(replica.engine)) as stream:
                    async for written in stream:
                        started = True
                        yield written
                replica.answered()
                return
            except EndpointError as error:
                self._note(replica, error)
                if started or last:
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
            raise error  # another server would refuse the request as well
        replica.failed(self._clock())

    def _in_turn(self, first: _Replica | None = None) -> list[tuple[_Replica, bool]]:
        """The order in which to try the servers, and whether each is the last: available ones first, in rotation."""
        available = self._available()
        self._turn += 1
        start = available.index(first) if first in available else self._turn % len(available)
        ordered = available[start:] + available[:start]
        ordered += [replica for replica in self._all if replica not in ordered]
        return [(replica, replica is ordered[-1]) for replica in ordered]

    def _available(self) -> list[_Replica]:
        """The servers that aren't paused after a failure; all servers if every one is paused."""
        now = self._clock()
        return [replica for replica in self._all if replica.rests_until <= now] or list(self._all)


def _parts(request: ScoringRequest, servers: int) -> list[ScoringRequest]:
    """The rows in contiguous parts of about equal size, none empty."""
    rows = request.end - request.first
    count = min(servers, rows)
    edges = [request.first + rows * part // count for part in range(count + 1)]
    return [replace(request, first=first, end=end) for first, end in pairwise(edges)]
