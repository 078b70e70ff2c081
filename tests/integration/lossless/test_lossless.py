"""The promise itself: with two servers and a real pair, the words are those of the target alone."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from contextlib import aclosing
from dataclasses import dataclass, field, replace
from typing import Any

import pytest

from specollama.backends.llama_cpp.tokenizer import LlamaTokenizer
from specollama.backends.ollama.client import OllamaServer
from specollama.backends.ollama.drafter import OllamaDrafter
from specollama.backends.ollama.request_bodies import RequestTemplate
from specollama.backends.ollama.schema import GenerateReply, Message
from specollama.backends.ollama.target import ParallelTarget
from specollama.config.settings import PairSettings
from specollama.pairs.pair import Pair
from specollama.pairs.request import ChatInput
from specollama.spec_decode.decode_loop import SpeculativeDecoder
from specollama.spec_decode.events import Status
from specollama.spec_decode.lookahead import FixedLookahead
from specollama.spec_decode.metrics import Stats
from specollama.spec_decode.retokenization import ExactPath
from specollama.spec_decode.types import AcceptanceMethod, Route, SamplingOptions
from specollama.tools.bench import CollectedReply, collect_reply
from tests.support.prompts import PROMPTS
from tests.support.target_alone import LENGTH, Alone

NEAR_TIE = 0.02  # of log-probability: more than batches move the gap of an F32 target's two best tokens
IDENTICAL = 19  # of the 20 texts, at least


@dataclass
class Outcome:
    """What became of all prompts."""

    replies: list[CollectedReply] = field(default_factory=list)
    different: dict[str, float] = field(default_factory=dict)  # prompts, and the target's gap where the texts part

    @property
    def acceptance(self) -> float:
        return sum(reply.stats.accepted for reply in self.replies) / sum(reply.stats.tested for reply in self.replies)

    @property
    def accepted_length(self) -> float:
        rounds = sum(reply.stats.rounds for reply in self.replies)
        emitted = sum(s.accepted + s.recovered + s.bonus for s in (reply.stats for reply in self.replies))
        return emitted / rounds

    def __str__(self) -> str:
        identical = len(self.replies) - len(self.different)
        return (
            f"{identical}/{len(self.replies)} identical, acceptance {self.acceptance:.3f}, "
            f"mean accepted length {self.accepted_length:.2f}, "
            f"extensions {sum(reply.stats.extensions for reply in self.replies)}"
        )


async def outcome(alone: Mapping[str, Alone], answer: Callable[[str], Awaitable[CollectedReply]]) -> Outcome:
    result = Outcome()
    for prompt in PROMPTS:
        reply, expected = await answer(prompt), alone[prompt]
        result.replies.append(reply)
        if reply.text != expected.text:
            result.different[prompt] = expected.gap_at(reply.text)
            print(f"{prompt!r}: gap {result.different[prompt]:.4f}\n  {reply.text!r}\n  {expected.text!r}")
    print(result)
    return result


def assert_lossless(result: Outcome) -> None:
    assert len(result.replies) - len(result.different) >= IDENTICAL
    assert all(gap < NEAR_TIE for gap in result.different.values()), result.different


async def through_pair(pair: Pair, prompt: str) -> CollectedReply:
    async with aclosing(pair.reply(ChatInput([Message(role="user", content=prompt)]))) as events:
        return await collect_reply(events)


@pytest.fixture(scope="module")
async def default_draft(settings: PairSettings, alone: dict[str, Alone]) -> Outcome:
    async with Pair(settings, {}) as pair:
        return await outcome(alone, lambda prompt: through_pair(pair, prompt))


async def test_lanes_with_the_default_draft_give_the_targets_words(default_draft: Outcome) -> None:
    assert_lossless(default_draft)


async def test_most_of_the_default_draft_is_accepted(default_draft: Outcome) -> None:
    assert default_draft.acceptance > 0.6
    assert default_draft.accepted_length > 2


async def test_drafting_ahead_gives_the_targets_words(settings: PairSettings, alone: dict[str, Alone]) -> None:
    async with Pair(replace(settings, draft_ahead=True), {}) as pair:
        asked = ChatInput([Message(role="user", content=PROMPTS[0])])
        async with aclosing(pair.reply(asked)) as events:
            status = await anext(events)
        replies = {prompt: await through_pair(pair, prompt) for prompt in PROMPTS[:3]}
    assert isinstance(status, Status)
    assert ", drafting ahead" in status.detail
    for prompt, reply in replies.items():
        parted = alone[prompt].gap_at(reply.text)
        assert reply.text == alone[prompt].text or parted < NEAR_TIE
        assert reply.stats.accepted > 0


async def test_the_greedy_route_gives_the_targets_words(settings: PairSettings, alone: dict[str, Alone]) -> None:
    async with Pair(replace(settings, route=Route.GREEDY), {}) as pair:
        result = await outcome(alone, lambda prompt: through_pair(pair, prompt))
    assert_lossless(result)
    assert result.acceptance > 0.6


class SecondChoices(OllamaServer):
    """A draft model gone wrong: every second token it gives is only its second choice."""

    async def generate(self, body: dict[str, Any], *args: Any) -> GenerateReply:
        reply = await super().generate(body, *args)
        for place, entry in enumerate(reply.logprobs or ()):
            others = [top for top in entry.top_logprobs or () if top.token and top.token != entry.token]
            if place % 2 and others:
                entry.token, entry.logprob = others[0].token, others[0].logprob
        reply.response = "".join(entry.token for entry in reply.logprobs or ())
        return reply


async def test_lanes_with_a_draft_wrong_on_purpose_give_the_targets_words(
    urls: dict[str, str],
    servers: dict[str, OllamaServer],
    vocabulary: LlamaTokenizer,
    alone: dict[str, Alone],
    default_draft: Outcome,
) -> None:
    options = SamplingOptions(temperature=0, num_predict=LENGTH)
    target = servers["target"]

    async def answer(prompt: str) -> CollectedReply:
        rendered = await target.render({"model": "target", "messages": [{"role": "user", "content": prompt}]})
        assert rendered
        cursor = ExactPath(rendered, vocabulary)
        speculation = SpeculativeDecoder(
            prompt=rendered,
            target=ParallelTarget(
                target, RequestTemplate("target", options), cursor, rule=AcceptanceMethod.GREEDY, seed=1
            ),
            drafter=OllamaDrafter(wrong, RequestTemplate("draft", options), rule=AcceptanceMethod.GREEDY, seed=2),
            lookahead=FixedLookahead(2),
            rule=AcceptanceMethod.GREEDY,
            options=options,
            stats=Stats(),
        )
        async with aclosing(speculation.events()) as events:
            return await collect_reply(events)

    async with SecondChoices(urls["draft"]) as wrong:
        result = await outcome(alone, answer)
    assert_lossless(result)
    assert result.acceptance < default_draft.acceptance - 0.2
    assert result.accepted_length < default_draft.accepted_length - 0.5
