"""The interface between the decode loop and the models: a drafter proposes, a target verifies.

Both are made for one reply and keep its state; both are closed by whoever made them.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator
from typing import Protocol

from specollama.spec_decode.types import Draft, TargetContinuation, TargetScores, Token, VerifyResult


class Drafter(Protocol):
    """Proposes draft tokens."""

    async def propose(self, text: str, count: int) -> Draft:
        """At most `count` tokens (0 or more) to follow `text`, the prompt and the reply so far.

        Raises RunError when the draft model can't be asked.
        """
        ...

    def learn(self, verdict: VerifyResult) -> None:
        """Learn from the verification of the last proposal."""
        ...


class Target(Protocol):
    """Verifies drafts and produces the target's tokens."""

    async def score(self, draft: Draft) -> TargetScores:
        """The rows along a draft. Some may be missing: the round then ends there.

        Raises RunError when the target can't be asked.
        """
        ...

    async def commit(self, verdict: VerifyResult, limit: int | None) -> TargetContinuation:
        """Append the round's tokens to the reply. Where the target can't be asked for rows, it continues alone.

        `limit`: tokens that the reply may still have after the verdict's; None: any number. After a verdict
        that was `hidden`, or without tokens, the continuation has at least one, or is `end` or `lost`.
        """
        ...

    def stream(self, limit: int | None) -> AsyncGenerator[Token | TargetContinuation, None]:
        """Stream the rest of the reply from the target's present position, without drafts.

        The last item says why it ended, and how many tokens without a text of their own were among it.

        Raises BrokenReply when the reply stops without its last line.
        """
        ...
