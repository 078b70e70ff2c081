"""Drafts while the target verifies, if the two don't share hardware (post-verify of PEARL, arXiv 2408.11850).

The next draft assumes that every token of the present draft is accepted. Its first token is then a guess at the bonus
token. If a token is rejected or the guess is wrong, the draft is discarded.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Sequence
from contextlib import suppress
from dataclasses import dataclass, field

from specollama.errors import RunError
from specollama.spec_decode.interfaces import Drafter, Target
from specollama.spec_decode.types import Draft, TargetContinuation, TargetScores, Token, VerifyResult


@dataclass(slots=True)
class DraftAhead:
    """Wraps a drafter, and starts the next draft before the verified text is known.

    Don't use it under AcceptanceMethod.REJECTION: which of two drafts is used would depend on their timing, and so on
    their content. Close it with `aclose`.
    """

    drafter: Drafter
    _text: str | None = None  # the text of the last proposal; None after that draft was sent
    _count: int = 0
    _base: str = ""  # the text that the draft ahead follows
    _ahead: asyncio.Task[Draft] | None = None
    _ended: set[asyncio.Task[Draft]] = field(default_factory=set)  # cancelled tasks that have not finished yet

    def start(self, sent: Draft) -> None:
        """Start the next draft after `sent`, the draft that the target now scores, if this drafter proposed it."""
        text, self._text = self._text, None
        if text is None or not sent.tokens:
            return
        self._give_up()
        self._base = text + sent.text
        self._ahead = asyncio.create_task(self.drafter.propose(self._base, self._count + 1))

    async def propose(self, text: str, count: int) -> Draft:
        self._text, self._count = text, count
        if self._ahead and not text.startswith(self._base):
            self._give_up()
        if self._ahead is None:
            return await self.drafter.propose(text, count)
        if not self._ahead.done():
            return await self._first_usable(text, count)
        return self._still_valid(text, count) or await self.drafter.propose(text, count)

    def learn(self, verdict: VerifyResult) -> None:
        self.drafter.learn(verdict)

    async def aclose(self) -> None:
        self._give_up()
        await asyncio.gather(*self._ended, return_exceptions=True)

    async def _first_usable(self, text: str, count: int) -> Draft:
        """Return the draft ahead if it is valid, otherwise a new draft that starts now, without waiting in between."""
        assert self._ahead
        anew = asyncio.create_task(self.drafter.propose(text, count))
        try:
            await asyncio.wait((self._ahead, anew), return_when=asyncio.FIRST_COMPLETED)
            kept = self._still_valid(text, count) if self._ahead.done() else None
            if kept:
                return kept
            self._give_up()
            return await anew
        finally:
            self._end(anew)

    def _still_valid(self, text: str, count: int) -> Draft | None:
        """Return the part of the draft ahead after `text`; None if the text contradicts the draft."""
        assert self._ahead
        task, self._ahead = self._ahead, None
        with suppress(RunError):  # the caller drafts again, which reports a lasting fault
            return _rest_after(task.result(), text[len(self._base) :], count)
        return None

    def _give_up(self) -> None:
        if self._ahead:
            self._end(self._ahead)
            self._ahead = None

    def _end(self, task: asyncio.Task[Draft]) -> None:
        if task.done():
            task.cancelled() or task.exception()  # retrieve the exception, so that asyncio doesn't log it
        else:
            task.cancel()
            self._ended.add(task)
            task.add_done_callback(self._ended.discard)


@dataclass(frozen=True, slots=True)
class OverlappedTarget:
    """Wraps a target: starts the given drafters whenever it scores a draft."""

    target: Target
    drafters: Sequence[DraftAhead]

    async def score(self, draft: Draft) -> TargetScores:
        for drafter in self.drafters:
            drafter.start(draft)
        return await self.target.score(draft)

    async def commit(self, verdict: VerifyResult, limit: int | None) -> TargetContinuation:
        return await self.target.commit(verdict, limit)

    def stream(self, limit: int | None) -> AsyncGenerator[Token | TargetContinuation, None]:
        return self.target.stream(limit)


def _rest_after(draft: Draft, said: str, count: int) -> Draft | None:
    """Return the tokens of a draft after its prefix `said`; None if `said` is no such prefix or no token is left."""
    for place, token in enumerate(draft.tokens):
        if not said:
            return draft.drop_first(place).first(count)
        if not said.startswith(token.text):
            return None
        said = said.removeprefix(token.text)
    return None
