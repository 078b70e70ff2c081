"""Detokenizes many token sequences with an engine that takes one at a time."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass

from specollama.errors import RunError

SEPARATOR = "|~:"
"""Plain characters that no token combines with others. No character may be a byte token, as a line break may be: next
to an incomplete character the engine would decode it as a part of that."""


@dataclass(frozen=True, slots=True)
class BatchDetokenizer:
    """Detokenizes many runs of tokens in one request, with a separator between them.

    `tokenize`: text to tokens. `print_tokens`: tokens to text. The separator is needed because SentencePiece tokenizers
    add a space before a text when they tokenize it and drop one when they detokenize: a token alone may lose a space.
    """

    tokenize: Callable[..., Awaitable[list[int]]]
    print_tokens: Callable[[Sequence[int]], Awaitable[str]]

    async def detokenize(self, runs: Sequence[Sequence[int]]) -> list[str]:
        """The text of each run. Raises RunError if the engine doesn't return the separator unchanged."""
        if not runs:
            return []
        between = await self.tokenize(SEPARATOR, whole=False)
        printed = await self.print_tokens([*between, *(id for run in [(), *runs] for id in (*run, *between))])
        texts = printed.split(SEPARATOR)
        if len(texts) == len(runs) + 3:
            added = texts[1]  # the text of the empty run: the space that the tokenizer put before the separator
            return [text.removesuffix(added) for text in texts[2:-1]]
        if len(runs) == 1:
            raise RunError("the engine prints tokens otherwise beside others: what a token is can't be told")
        return [text for one in await asyncio.gather(*(self.detokenize([run]) for run in runs)) for text in one]
