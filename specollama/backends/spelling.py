"""What tokens print, from an engine that prints one run of them at a time."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass

from specollama.errors import RunError

_BETWEEN = "\n|~|\n"  # plain characters, which no token holds together with others


@dataclass(frozen=True, slots=True)
class Separated:
    """Prints many runs in one request, with a separator between them. `tokenize`: of a text; `prints`: of tokens.

    By itself a token may print less than in a text: tokenizers of SentencePiece's kind drop a leading space.
    """

    tokenize: Callable[..., Awaitable[list[int]]]
    prints: Callable[[Sequence[int]], Awaitable[str]]

    async def spell(self, runs: Sequence[Sequence[int]]) -> list[str]:
        if not runs:
            return []
        between = await self.tokenize(_BETWEEN, whole=False)
        texts = (await self.prints([*between, *(id for run in runs for id in (*run, *between))])).split(_BETWEEN)
        if len(texts) == len(runs) + 2:
            return texts[1:-1]
        if len(runs) == 1:
            raise RunError("the engine prints tokens otherwise beside others: what a token is can't be told")
        return [text for one in await asyncio.gather(*(self.spell([run]) for run in runs)) for text in one]
