"""Drafts while the target verifies, on hardware of its own (post-verify of PEARL, arXiv 2408.11850).

The next draft is begun from the likeliest outcome, that all is accepted. Its first token is then a guess at the bonus
token; where either turns out otherwise, nothing of it is used.
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
    """A drafter that starts before the text is known that its draft must follow.

    Not under Rule.REJECTION: which of two drafts is used would depend on how soon each was there, and so on what it
    says. Close it with `aclose`.
    """

    drafter: Drafter
    _text: str | None = None  # that the last draft was asked for; None once that was sent
    _count: int = 0
    _base: str = ""  # that the draft ahead follows
    _ahead: asyncio.Task[Draft] | None = None
    _ended: set[asyncio.Task[Draft]] = field(default_factory=set)  # given up, and not over yet

    def start(self, sent: Draft) -> None:
        """Start the next draft behind the one just sent to the target, if this drafter made it."""
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
        """The draft ahead if it fits, else a new one started now, so that nothing waits for a wrong one."""
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
        """The rest of the draft ahead beyond the text; None if the text differs from it."""
        assert self._ahead
        task, self._ahead = self._ahead, None
        with suppress(RunError):  # asked again, it fails again or it doesn't
            return _rest_after(task.result(), text[len(self._base) :], count)
        return None

    def _give_up(self) -> None:
        if self._ahead:
            self._end(self._ahead)
            self._ahead = None

    def _end(self, task: asyncio.Task[Draft]) -> None:
        if task.done():
            task.cancelled() or task.exception()  # it was looked at: asyncio doesn't complain about it
        else:
            task.cancel()
            self._ended.add(task)
            task.add_done_callback(self._ended.discard)


@dataclass(frozen=True, slots=True)
class OverlappedTarget:
    """A target that lets these drafters run ahead while it verifies."""

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
    """What of a draft comes after `said`, if that is its beginning, in whole tokens; None otherwise, or for no more."""
    for place, token in enumerate(draft.tokens):
        if not said:
            return draft.drop_first(place).first(count)
        if not said.startswith(token.text):
            return None
        said = said.removeprefix(token.text)
    return None
