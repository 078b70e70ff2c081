"""Detokenizes many token sequences with an engine that takes one at a time."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass

from specollama.errors import RunError

SEPARATOR = "|~:"
"""Plain characters, which no token holds together with others. None is a byte's token, such as a line's end may be:
beside a part of a character it would be printed as a part of that."""


@dataclass(frozen=True, slots=True)
class BatchDetokenizer:
    """Prints many runs in one request, with a separator between them. `tokenize`: of a text; `print_tokens`: of tokens.

    By itself a token may print less than in a text: tokenizers of SentencePiece's kind put a space before each text
    that they cut, and drop one where they print.
    """

    tokenize: Callable[..., Awaitable[list[int]]]
    print_tokens: Callable[[Sequence[int]], Awaitable[str]]

    async def detokenize(self, runs: Sequence[Sequence[int]]) -> list[str]:
        """Raises RunError where the separator isn't printed as it was written."""
        if not runs:
            return []
        between = await self.tokenize(SEPARATOR, whole=False)
        printed = await self.print_tokens([*between, *(id for run in [(), *runs] for id in (*run, *between))])
        texts = printed.split(SEPARATOR)
        if len(texts) == len(runs) + 3:
            added = texts[1]  # after no tokens at all: such a space, which the separator begins with
            return [text.removesuffix(added) for text in texts[2:-1]]
        if len(runs) == 1:
            raise RunError("the engine prints tokens otherwise beside others: what a token is can't be told")
        return [text for one in await asyncio.gather(*(self.detokenize([run]) for run in runs)) for text in one]
