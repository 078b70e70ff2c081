"""Replies put together from their parts, as pairs.py does it, for cursors and drafters that no setting gives."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import aclosing
from dataclasses import dataclass, field
from typing import Any

from specollama.backends.ollama.client import OllamaServer
from specollama.backends.ollama.drafter import OllamaDrafter
from specollama.backends.ollama.request_bodies import Requests
from specollama.backends.ollama.target import LanesTarget
from specollama.spec_decode.decode_loop import Speculation
from specollama.spec_decode.interfaces import Drafter
from specollama.spec_decode.lookahead import FixedLookahead
from specollama.spec_decode.metrics import Stats
from specollama.spec_decode.retokenization import Cursor
from specollama.spec_decode.types import Draft, Rule, SamplingOptions, Token, Verdict
from specollama.tools.bench import Reply, collect


@dataclass
class Drafting:
    """A drafter that proposes what it is told, whatever was said before."""

    texts: Sequence[str] | Callable[[str], Sequence[str]]
    verdicts: list[Verdict] = field(default_factory=list)

    async def propose(self, text: str, count: int) -> Draft:
        texts = self.texts(text) if callable(self.texts) else self.texts
        return Draft(tuple(Token(each) for each in texts[:count]))

    def learn(self, verdict: Verdict) -> None:
        self.verdicts.append(verdict)


def greedy(length: int) -> SamplingOptions:
    return SamplingOptions(temperature=0, num_predict=length)


def ordinary_drafter(server: OllamaServer, options: SamplingOptions) -> OllamaDrafter:
    return OllamaDrafter(server, Requests("draft", options), rule=Rule.GREEDY, seed=1)


async def speculated(
    server: OllamaServer,
    prompt: str,
    cursor: Cursor,
    *,
    length: int = 16,
    lookahead: int = 4,
    drafter: Drafter | None = None,
    **target: Any,
) -> Reply:
    """A reply to a raw prompt at temperature 0, by lanes. The base of the position seeds is 11."""
    options = greedy(length)
    speculation = Speculation(
        prompt=prompt,
        target=LanesTarget(server, Requests("target", options), cursor, rule=Rule.GREEDY, seed=11, **target),
        drafter=drafter or ordinary_drafter(server, options),
        lookahead=FixedLookahead(lookahead),
        rule=Rule.GREEDY,
        options=options,
        stats=Stats(),
    )
    async with aclosing(speculation.events()) as events:
        return await collect(events)


async def plain(server: OllamaServer, prompt: str, length: int = 16) -> str:
    """The same reply by the target alone."""
    body = Requests("target", greedy(length)).raw(prompt, num_predict=length, seed=None)
    return (await server.generate(body)).response
