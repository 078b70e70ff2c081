"""Replies put together from their parts, as pairs.py does it, for cursors and drafters that no setting gives."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import aclosing
from dataclasses import dataclass, field
from typing import Any

from specollama.backends.ollama.client import OllamaServer
from specollama.backends.ollama.drafter import OllamaDrafter
from specollama.backends.ollama.request_bodies import RequestTemplate
from specollama.backends.ollama.target import ParallelTarget
from specollama.spec_decode.decode_loop import SpeculativeDecoder
from specollama.spec_decode.interfaces import Drafter
from specollama.spec_decode.lookahead import FixedLookahead
from specollama.spec_decode.metrics import Stats
from specollama.spec_decode.retokenization import TokenPath
from specollama.spec_decode.types import AcceptanceMethod, Draft, SamplingOptions, Token, VerifyResult
from specollama.tools.bench import CollectedReply, collect_reply


@dataclass
class Drafting:
    """A drafter that proposes what it is told, whatever was said before."""

    texts: Sequence[str] | Callable[[str], Sequence[str]]
    verdicts: list[VerifyResult] = field(default_factory=list)

    async def propose(self, text: str, count: int) -> Draft:
        texts = self.texts(text) if callable(self.texts) else self.texts
        return Draft(tuple(Token(each) for each in texts[:count]))

    def learn(self, verdict: VerifyResult) -> None:
        self.verdicts.append(verdict)


def greedy(length: int) -> SamplingOptions:
    return SamplingOptions(temperature=0, num_predict=length)


def ordinary_drafter(server: OllamaServer, options: SamplingOptions) -> OllamaDrafter:
    return OllamaDrafter(server, RequestTemplate("draft", options), rule=AcceptanceMethod.GREEDY, seed=1)


async def speculated(
    server: OllamaServer,
    prompt: str,
    cursor: TokenPath,
    *,
    length: int = 16,
    lookahead: int = 4,
    drafter: Drafter | None = None,
    **target: Any,
) -> CollectedReply:
    """A reply to a raw prompt at temperature 0, by lanes. The base of the position seeds is 11."""
    options = greedy(length)
    speculation = SpeculativeDecoder(
        prompt=prompt,
        target=ParallelTarget(
            server, RequestTemplate("target", options), cursor, rule=AcceptanceMethod.GREEDY, seed=11, **target
        ),
        drafter=drafter or ordinary_drafter(server, options),
        lookahead=FixedLookahead(lookahead),
        rule=AcceptanceMethod.GREEDY,
        options=options,
        stats=Stats(),
    )
    async with aclosing(speculation.events()) as events:
        return await collect_reply(events)


async def plain(server: OllamaServer, prompt: str, length: int = 16) -> str:
    """The same reply by the target alone."""
    body = RequestTemplate("target", greedy(length)).raw(prompt, num_predict=length, seed=None)
    return (await server.generate(body)).response
