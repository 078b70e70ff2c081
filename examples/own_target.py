"""A target of one's own: it counts from 1, a token for each number. Prompt lookup drafts for it.

python examples/own_target.py
"""

import asyncio
from collections.abc import AsyncGenerator
from contextlib import aclosing

from specollama.backends.prompt_lookup import TextLookupDrafter
from specollama.spec_decode.decode_loop import SpeculativeDecoder
from specollama.spec_decode.events import Text
from specollama.spec_decode.lookahead import FixedLookahead
from specollama.spec_decode.metrics import Stats
from specollama.spec_decode.types import (
    AcceptanceMethod,
    DoneReason,
    Draft,
    Route,
    SamplingOptions,
    TargetContinuation,
    TargetRow,
    TargetScores,
    Token,
    VerifyResult,
)

PROMPT = "1 2 3 4 5 6 7 8 9 10\nOnce more: "


class CountingTarget:
    """The whole state of the reply is how many numbers it has."""

    def __init__(self, last: int) -> None:
        self.last = last
        self.written = 0

    def sample(self, written: int) -> Token | None:
        """The token after so many numbers; None: the end."""
        if written == self.last:
            return None
        return Token(f"{written + 1} " if written + 1 < self.last else f"{written + 1}")

    async def score(self, draft: Draft) -> TargetScores:
        """A row at the beginning of the draft and after each of its tokens, keyed by the offset in characters."""
        rows, offset = dict[int, TargetRow](), 0
        for count, token in enumerate((*draft.tokens, None)):
            sample = self.sample(min(self.written + count, self.last))
            rows[offset] = TargetRow(sample, end=sample is None)
            offset += len(token.text) if token else 0
        return TargetScores(rows, rows_requested=len(rows))

    async def commit(self, verdict: VerifyResult, limit: int | None) -> TargetContinuation:
        """Every place can be scored from, so that nothing has to be decoded without a draft."""
        self.written += len(verdict.emitted)
        return TargetContinuation(end=DoneReason.STOP if verdict.end else None)

    async def stream(self, limit: int | None) -> AsyncGenerator[Token | TargetContinuation, None]:
        """The rest of the reply, for a loop that stops drafting."""
        while token := self.sample(self.written):
            self.written += 1
            yield token
        yield TargetContinuation(end=DoneReason.STOP)


async def run() -> None:
    options, stats = SamplingOptions(temperature=0), Stats(route=Route.GREEDY)
    decoder = SpeculativeDecoder(
        prompt=PROMPT,
        target=CountingTarget(10),
        drafter=TextLookupDrafter(),
        lookahead=FixedLookahead(4),
        rule=AcceptanceMethod.GREEDY,
        options=options,
        stats=stats,
    )
    async with aclosing(decoder.events()) as events:
        async for event in events:
            if isinstance(event, Text):
                print(event.text, end="")
    print(f"\n{stats.accepted} of {stats.drafted} drafted tokens accepted in {stats.rounds} rounds")


def main() -> None:
    asyncio.run(run())


if __name__ == "__main__":
    main()
