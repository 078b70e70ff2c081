"""vLLM's OpenAI server as a target's engine: a list of token-id prompts in one POST, a token drawn for each.

Its `prompt_logprobs` would give all places in one pass, but such a request reads no prefix cache: the whole prompt is
computed anew each time. Token ids are asked for in place of texts (`return_tokens_as_token_ids`), since several tokens
may print the same.
"""

from __future__ import annotations

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
from specollama.backends.engines.detokenize import BatchDetokenizer
from specollama.spec_decode.types import SamplingOptions, Token

_TOP = 2  # most probable tokens shown with a row: what a near-tie is told by
_SHOWN = {"logprobs": _TOP, "return_tokens_as_token_ids": True}
_PREFIX = "token_id:"


class VLLM(EngineClient):
    """The API of one vLLM server."""

    kind = EngineKind("vLLM", "vllm serve MODEL")
    capabilities = Capabilities(renders_chats=True, unsupported_options=UNSHARED_OPTIONS)

    async def info(self) -> EngineInfo:
        listed = await find_model(self, self.model)
        return EngineInfo(self.model, (await self.get("/version", _Version)).version, listed.max_model_len)

    async def tokenize(self, text: str, *, whole: bool) -> list[int]:
        body = {"model": self.model, "prompt": text, "add_special_tokens": whole}
        return (await self.post("/tokenize", body, _Tokens)).tokens

    async def detokenize(self, runs: Sequence[Sequence[int]]) -> list[str]:
        return await BatchDetokenizer(self.tokenize, self._print).detokenize(runs)

    async def render(self, messages: Sequence[Mapping[str, Any]]) -> tuple[list[int], str]:
        chat = [dict(message) for message in messages]
        body = {"model": self.model, "messages": chat, "add_generation_prompt": True}
        tokens = (await self.post("/tokenize", body, _Tokens)).tokens
        return tokens, await self._print(tokens)

    async def count_chat_tokens(self, messages: Sequence[Mapping[str, Any]]) -> int:
        return await count_chat_tokens(self, self.model, messages)

    async def score_positions(self, request: ScoringRequest, draws: DrawSettings) -> list[SampledToken | None]:
        places = request.positions()
        answer = await self.post(
            "/v1/completions",
            score_request_body(self.model, places, draws, {**sampling_body(draws.options), **_SHOWN}),
            Completion,
        )
        return [self._drawn(choice) for choice in choices_by_prompt(self, answer, len(places))]

    def stream(
        self, place: PromptPosition, limit: int | None, draws: DrawSettings
    ) -> AsyncGenerator[StreamPiece, None]:
        seed = draws.seed_at(place.position)
        return stream_completion(self, self.model, place, limit, sampling_body(draws.options), seed)

    def chat(
        self, messages: Sequence[Mapping[str, Any]], limit: int | None, draws: DrawSettings
    ) -> AsyncGenerator[StreamPiece, None]:
        return stream_chat(self, self.model, messages, limit, sampling_body(draws.options), draws)

    async def _print(self, tokens: Sequence[int]) -> str:
        body = {"model": self.model, "tokens": list(tokens)}
        return (await self.post("/detokenize", body, _Printed)).prompt

    def _drawn(self, choice: Choice) -> SampledToken | None:
        end = choice.finish_reason == "stop"
        shown = choice.logprobs
        if shown is None or len(shown.tokens) != 1:
            return SampledToken(-1, end=True) if end else None
        token = self._id(shown.tokens[0])
        text = "" if REPLACEMENT in choice.text else choice.text
        best = sorted(((shown.top_logprobs or [None])[0] or {}).items(), key=lambda entry: -entry[1])
        top = tuple(Token(text if self._id(name) == token else "", logprob, self._id(name)) for name, logprob in best)
        return SampledToken(token, text, end, shown.token_logprobs[0], top[:_TOP])

    def _id(self, name: str) -> int:
        number = name.removeprefix(_PREFIX)
        if number == name or not number.isdigit():
            raise self.broken_reply(
                f"a token is shown as {name!r}, not as {_PREFIX}N: vLLM before 0.6 doesn't give ids"
            )
        return int(number)


class _Version(BaseModel):
    version: str


class _Tokens(BaseModel):
    tokens: list[int]


class _Printed(BaseModel):
    prompt: str


def sampling_body(options: SamplingOptions) -> dict[str, Any]:
    """The sampling options by vLLM's names. Its penalties have no window: they count all tokens."""
    return sampling_fields(options, top_k=options.top_k if options.top_k > 0 else -1)
