"""SGLang's own API as a target's engine: all places of a draft in one pass, at temperature 0.

`logprob_start_len` is set to the last token of the context, so that the radix cache keeps serving all before it. The
entry at that token itself is always null (what predicts it isn't computed); each drafted token's follows. Above
temperature 0 the places are prompts of their own in one request, since what is shown of a prompt isn't drawn.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, Mapping, Sequence
from contextlib import aclosing
from functools import cached_property
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
from specollama.backends.engines.chat_completions import count_chat_tokens, done_reason, find_model, stream_chat
from specollama.backends.engines.client import EngineClient, EngineKind
from specollama.backends.engines.detokenize import SEPARATOR
from specollama.spec_decode.types import SamplingOptions, Token

_TOP = 2  # most probable tokens shown with a row: the best, and the one that it may be tied with

_Entry = tuple[float | None, int, str | None]  # log-probability, token, text


class SGLang(EngineClient):
    """The API of one SGLang server."""

    kind = EngineKind("SGLang", "python -m sglang.launch_server --model-path MODEL")
    capabilities = Capabilities(one_pass=True, takes_seed=False, unsupported_options=UNSHARED_OPTIONS)

    async def info(self) -> EngineInfo:
        listed = await find_model(self, self.model)
        info, length = await self.get("/server_info", _Info), listed.max_model_len
        within = None if length is None else length - 1  # it refuses what would fill the context to its last place
        return EngineInfo(self.model, info.version, within, info.max_running_requests)

    async def tokenize(self, text: str, *, whole: bool) -> list[int]:
        body = {"model": self.model, "prompt": text, "add_special_tokens": whole}
        return (await self.post("/tokenize", body, _Tokens)).tokens

    async def detokenize(self, runs: Sequence[Sequence[int]]) -> list[str]:
        before = await self.tokenize(SEPARATOR, whole=False)  # a leading space stays after something
        tokens = [before, *([*before, *run] for run in runs)]
        answer = await self.post("/detokenize", {"tokens": tokens, "skip_special_tokens": True}, _Printed)
        if len(answer.text) != len(tokens):
            raise self.broken_reply(f"{len(answer.text)} texts for {len(tokens)} runs of tokens")
        return [text.removeprefix(answer.text[0]) for text in answer.text[1:]]

    async def render(self, messages: Sequence[Mapping[str, Any]]) -> tuple[list[int], str]:
        raise NotImplementedError("can.renders says so")

    async def count_chat_tokens(self, messages: Sequence[Mapping[str, Any]]) -> int:
        return await count_chat_tokens(self, self.model, messages)

    async def score_positions(self, request: ScoringRequest, draws: DrawSettings) -> list[SampledToken | None]:
        if draws.options.greedy and request.is_whole:
            return await self._in_one_pass(request, draws)
        places = request.positions()
        answers = await self.post_for_list("/generate", score_request_body(places, draws), _Answer)
        if len(answers) != len(places):
            raise self.broken_reply(f"{len(answers)} answers to {len(places)} prompts")
        await self._learn([answer.meta_info.drawn for answer in answers])
        return [self._generated(answer.meta_info) for answer in answers]

    async def _in_one_pass(self, request: ScoringRequest, draws: DrawSettings) -> list[SampledToken | None]:
        answer = (await self.post("/generate", one_pass_request_body(request, draws), _Answer)).meta_info
        entries, best = answer.input_token_logprobs or [], answer.input_top_logprobs or []
        scored = [entry[1] for entry in entries[1:]]
        if scored != list(request.drafted) or len(best) != len(entries) or any(top is None for top in best[1:]):
            raise self.broken_reply("the log-probabilities of the prompt aren't those of the drafted tokens")
        rows = [top or [] for top in best[1:]]
        await self._learn([*(row[0][1] for row in rows if row), answer.drawn])
        return [*(self._most_probable(row) for row in rows), self._generated(answer)]

    def _most_probable(self, row: list[_Entry]) -> SampledToken | None:
        """What would be drawn there. Not known where two are equal, nor where it may be the end: nothing tells that."""
        top = self._shown(row)
        text = self._text(row[0][1]) if row else ""
        tied = len(row) > 1 and row[0][0] == row[1][0]
        return SampledToken(row[0][1], text, logprob=row[0][0], top=top) if text and not tied else None

    def _generated(self, answer: _Meta) -> SampledToken | None:
        end = answer.finish_reason is not None and answer.finish_reason.get("type") == "stop"
        if answer.drawn is None:
            return SampledToken(-1, end=True) if end else None
        [(logprob, token, _)] = answer.output_token_logprobs[:1]
        top = self._shown((answer.output_top_logprobs or [None])[0] or [])
        return SampledToken(token, self._text(token), end, logprob, top)

    def _shown(self, row: list[_Entry]) -> tuple[Token, ...]:
        return tuple(Token(self._texts.get(token, ""), logprob, token) for logprob, token, _ in row[:_TOP])

    def _text(self, token: int) -> str:
        text = self._texts.get(token, "")
        return "" if REPLACEMENT in text else text

    @cached_property
    def _texts(self) -> dict[int, str]:
        """What tokens print, as far as it was asked."""
        return {}

    async def _learn(self, tokens: Sequence[int | None]) -> None:
        """What these tokens print, each asked for once."""
        new = [token for token in dict.fromkeys(tokens) if token is not None and token not in self._texts]
        if new:
            self._texts.update(zip(new, await self.detokenize([[token] for token in new]), strict=True))

    async def stream(
        self, place: PromptPosition, limit: int | None, draws: DrawSettings
    ) -> AsyncGenerator[StreamPiece, None]:
        body = {
            "input_ids": list(place.tokens),
            "sampling_params": sampling_body(draws.options) | ({} if limit is None else {"max_new_tokens": limit}),
            "stream": True,
        }
        shown, texts = "", 0
        async with aclosing(self.events("/generate", body)) as events:
            async for event, _ in events:
                chunk = self.validate(event, _Answer)
                if chunk.error is not None:
                    raise self.refusal(chunk.error, 200)
                text, shown = chunk.text.removeprefix(shown), chunk.text  # each has the whole text so far
                texts += bool(text)
                finish = chunk.meta_info.finish_reason
                if finish is None:
                    yield StreamPiece(text)
                    continue
                drawn = chunk.meta_info.completion_tokens - (finish.get("type") == "stop")
                yield StreamPiece(text, max(0, drawn - texts), done_reason(str(finish.get("type"))))
                return
        raise self.broken_reply("the reply ended before its last event (no finish_reason)")

    def chat(
        self, messages: Sequence[Mapping[str, Any]], limit: int | None, draws: DrawSettings
    ) -> AsyncGenerator[StreamPiece, None]:
        return stream_chat(self, self.model, messages, limit, sampling_body(draws.options), draws)


class _Info(BaseModel):
    version: str = ""
    max_running_requests: int | None = None


class _Tokens(BaseModel):
    tokens: list[int]


class _Printed(BaseModel):
    text: list[str]


class _Meta(BaseModel):
    finish_reason: dict[str, Any] | None = None
    completion_tokens: int = 0
    input_token_logprobs: list[_Entry] | None = None
    input_top_logprobs: list[list[_Entry] | None] | None = None
    output_token_logprobs: list[_Entry] = []
    output_top_logprobs: list[list[_Entry] | None] | None = None

    @property
    def drawn(self) -> int | None:
        return self.output_token_logprobs[0][1] if self.output_token_logprobs else None


class _Answer(BaseModel):
    text: str = ""
    meta_info: _Meta = _Meta()
    error: Any = None


def sampling_body(options: SamplingOptions) -> dict[str, Any]:
    """The sampling options by SGLang's names; -1 is its word for no top_k."""
    return sampling_fields(options, top_k=options.top_k if options.top_k > 0 else -1)


def one_pass_request_body(request: ScoringRequest, draws: DrawSettings) -> dict[str, Any]:
    """A request that scores all drafted tokens, and draws one more."""
    return {
        "input_ids": [*request.start.tokens, *request.drafted],
        "sampling_params": {**sampling_body(draws.options), "max_new_tokens": 1},
        "return_logprob": True,
        "logprob_start_len": len(request.start.tokens) - 1,
        "top_logprobs_num": _TOP,
    }


def score_request_body(places: Sequence[PromptPosition], draws: DrawSettings) -> dict[str, Any]:
    """A request that draws a token after each of several prompts."""
    return {
        "input_ids": [list(place.tokens) for place in places],
        "sampling_params": {**sampling_body(draws.options), "max_new_tokens": 1},
        "return_logprob": True,
        "top_logprobs_num": _TOP,
    }
