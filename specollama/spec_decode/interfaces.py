"""Interfaces between the decoding loop and the models: a drafter proposes tokens, a target verifies them.

Each instance serves one reply and keeps its state. The code that creates an instance closes it.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator
from typing import Protocol

from specollama.spec_decode.types import Draft, TargetContinuation, TargetScores, Token, VerifyResult


class Drafter(Protocol):
    """Proposes the tokens that may come next."""

    async def propose(self, text: str, count: int) -> Draft:
        """Propose at most `count` tokens (0 or more) after `text`, which is the prompt and the reply so far.

        Raises RunError when the request to the draft model fails.
        """
        ...

    def learn(self, verdict: VerifyResult) -> None:
        """Take note of the verification result of the last proposal."""
        ...


class Target(Protocol):
    """Verifies drafts and produces the target's tokens."""

    async def score(self, draft: Draft) -> TargetScores:
        """Return the target's rows along a draft. The round ends at the first missing row.

        Raises RunError when the request to the target fails.
        """
        ...

    async def commit(self, verdict: VerifyResult, limit: int | None) -> TargetContinuation:
        """Append the round's tokens to the reply. Decode without drafts up to a place where scoring works again.

        `limit`: tokens that may follow those of the verdict; None: no limit. If the verdict is `hidden` or has no
        tokens, then the continuation has at least one token, or it sets `end` or `lost`.
        """
        ...

    def stream(self, limit: int | None) -> AsyncGenerator[Token | TargetContinuation, None]:
        """Stream the rest of the reply, decoded by the target without drafts.

        The last item gives the reason of the end and the number of sampled tokens that have no text.

        Raises BrokenReply when the server's stream stops before its final line.
        """
        ...
