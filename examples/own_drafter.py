"""A drafter of one's own: it proposes the rest of a known phrase. The target here is a scripted one.

python examples/own_drafter.py
"""

import asyncio
from contextlib import aclosing
from dataclasses import dataclass

from specollama.backends.scripted import ScriptedTarget, fixed_script
from specollama.spec_decode.decode_loop import SpeculativeDecoder
from specollama.spec_decode.events import Text
from specollama.spec_decode.lookahead import FixedLookahead
from specollama.spec_decode.metrics import Stats
from specollama.spec_decode.types import AcceptanceMethod, Draft, Route, SamplingOptions, Token, VerifyResult


@dataclass
class PhraseDrafter:
    """Proposes the words that follow in the phrase. It tells no distribution (`q` is None), so exact match applies."""

    words: list[str]

    async def propose(self, text: str, count: int) -> Draft:
        for place in range(len(self.words), 0, -1):
            if text.endswith("".join(self.words[:place])):
                proposed = self.words[place : place + count]
                return Draft(tuple(map(Token, proposed)), (None,) * len(proposed), source="phrase")
        return Draft()

    def learn(self, verdict: VerifyResult) -> None:
        """The phrase stays what it is, whatever was accepted."""


async def run() -> None:
    words = ["To", " be", ",", " or", " not", " to", " be"]
    options, stats = SamplingOptions(temperature=0), Stats(route=Route.GREEDY)
    decoder = SpeculativeDecoder(
        prompt="",
        target=ScriptedTarget(fixed_script(*words, "."), options, seed=0),
        drafter=PhraseDrafter(words),
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
