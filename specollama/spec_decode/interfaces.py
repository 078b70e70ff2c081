"""The whole seam between the loop and the models: a drafter proposes, a target scores.

Both are made for one reply and keep its state; both are closed by whoever made them.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator
from typing import Protocol

from specollama.spec_decode.types import Draft, TargetContinuation, TargetScores, Token, VerifyResult


class Drafter(Protocol):
    """Writes ahead."""

    async def propose(self, text: str, count: int) -> Draft:
        """At most `count` tokens (0 or more) to follow `text`, the prompt and the reply so far.

        Raises RunError when the draft model can't be asked.
        """
        ...

    def learn(self, verdict: VerifyResult) -> None:
        """How the last proposal fared."""
        ...


class Target(Protocol):
    """Decides what stands."""

    async def score(self, draft: Draft) -> TargetScores:
        """The rows along a draft. Some may be missing: the round then ends there.

        Raises RunError when the target can't be asked.
        """
        ...

    async def commit(self, verdict: VerifyResult, limit: int | None) -> TargetContinuation:
        """Take the round's tokens into the reply, and write on alone where the target can't be asked.

        `limit`: tokens that the reply may still have after the verdict's; None: any number. After a verdict
        that was `hidden`, or without tokens, the continuation has at least one, or is `end` or `lost`.
        """
        ...

    def stream(self, limit: int | None) -> AsyncGenerator[Token | TargetContinuation, None]:
        """The rest of the reply from where the target stands, in one go.

        The last item says why it ended, and how many tokens without a text of their own were among it.

        Raises BrokenReply when the reply stops without its last line.
        """
        ...
