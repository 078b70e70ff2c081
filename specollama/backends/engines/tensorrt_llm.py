"""trtllm-serve as a target's engine: like vLLM a list of token-id prompts in one POST.

It shows no log-probabilities of a prompt, has no call that prints tokens, and takes no field that it doesn't know. With
`detokenize` false it gives the ids of what it drew, and with `logprobs` beside them each token printed by itself. That
is its text in a reply, unless the tokenizer puts a space before a text and takes it off again (SentencePiece's dummy
prefix): then nothing can be drafted.
"""

from __future__ import annotations

import re
from collections.abc import AsyncGenerator, Mapping, Sequence
from typing import Any

from pydantic import BaseModel

from specollama.backends.engines.base import (
    REPLACEMENT,
    UNSHARED_OPTIONS,
    Capabilities,
    DrawSettings,
    EngineInfo,
    PromptPosition,
    SampledToken,
    ScoringRequest,
    StreamPiece,
    sampling_fields,
)
from specollama.backends.engines.chat_completions import count_chat_tokens, find_model, stream_chat
from specollama.backends.engines.client import EngineClient, EngineKind
from specollama.backends.engines.completions import (
    Choice,
    Completion,
    choices_by_prompt,
    score_request_body,
    stream_completion,
)
from specollama.errors import Refused
from specollama.spec_decode.types import SamplingOptions

_SHOWN = {"logprobs": 1, "detokenize": False}
_MARKER = re.compile(r"<\|[^|]*\|>|</?s>|<(pad|unk|bos|eos)>")  # control tokens: a reply doesn't show them


class TensorRTLLM(EngineClient):
    """The API of one trtllm-serve."""

    kind = EngineKind("TensorRT-LLM", "trtllm-serve MODEL")
    capabilities = Capabilities(detokenizes=False, needs_seed=True, unsupported_options=UNSHARED_OPTIONS)

    async def info(self) -> EngineInfo:
        await find_model(self, self.model)
        version = (await self.get("/version", _Version)).version
        return EngineInfo(self.model, version, strips_leading_space=await self._adds_a_space())

    async def _adds_a_space(self) -> bool:
        """Whether a text begins with another token than the same word in the middle of a line would."""
        alone, after = await self.tokenize("word", whole=False), await self.tokenize("\nword", whole=False)
        return after[-len(alone) :] != alone

    async def tokenize(self, text: str, *, whole: bool) -> list[int]:
        """It always adds the begin marker, where the model wants one: of a piece of text it is taken off."""
        tokens = await self._encode(text)
        if whole:
            return tokens
        added = await self._encode("")
        return tokens[len(added) :] if tokens[: len(added)] == added else tokens

    async def detokenize(self, runs: Sequence[Sequence[int]]) -> list[str]:
        raise NotImplementedError("can.spells says so")

    async def render(self, messages: Sequence[Mapping[str, Any]]) -> tuple[list[int], str]:
        raise NotImplementedError("can.renders says so")

    async def count_chat_tokens(self, messages: Sequence[Mapping[str, Any]]) -> int:
        return await count_chat_tokens(self, self.model, messages)

    async def score_positions(self, request: ScoringRequest, draws: DrawSettings) -> list[SampledToken | None]:
        places = request.positions()
        answer = await self.post(
            "/v1/completions",
            score_request_body(self.model, places, draws, {**sampling_body(draws.options), **_SHOWN}),
            Completion,
        )
        return [_drawn(choice) for choice in choices_by_prompt(self, answer, len(places))]

    def stream(
        self, place: PromptPosition, limit: int | None, draws: DrawSettings
    ) -> AsyncGenerator[StreamPiece, None]:
        seed = draws.seed_at(place.position)
        return stream_completion(self, self.model, place, limit, sampling_body(draws.options), seed)

    def chat(
        self, messages: Sequence[Mapping[str, Any]], limit: int | None, draws: DrawSettings
    ) -> AsyncGenerator[StreamPiece, None]:
        return stream_chat(self, self.model, messages, limit, sampling_body(draws.options), draws)

    async def _encode(self, text: str) -> list[int]:
        try:
            return (await self.post("/_internal/tokenize", {"prompt": text}, _Tokens)).tokens
        except Refused as error:
            if error.status != 404:
                raise
            words = f"{self.url}: this TensorRT-LLM has no /_internal/tokenize, without which nothing can be drafted"
            raise Refused(words, url=self.url, status=404) from error


class _Version(BaseModel):
    version: str


class _Tokens(BaseModel):
    tokens: list[int]


def _drawn(choice: Choice) -> SampledToken | None:
    end = choice.finish_reason == "stop"
    if not choice.token_ids:
        return SampledToken(-1, end=True) if end else None
    shown = choice.logprobs
    text = shown.tokens[0] if shown and shown.tokens else ""
    hidden = REPLACEMENT in text or _MARKER.fullmatch(text)
    return SampledToken(choice.token_ids[0], "" if hidden else text, end, shown.token_logprobs[0] if shown else None)


def sampling_body(options: SamplingOptions) -> dict[str, Any]:
    """The sampling options by TensorRT-LLM's names; 0 is its word for no top_k."""
    return sampling_fields(options, top_k=1 if options.greedy else max(0, options.top_k))
