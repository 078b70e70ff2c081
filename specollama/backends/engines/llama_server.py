"""One llama-server over HTTP: as a target's engine, and as another engine to measure against.

It shows no log-probabilities of a prompt, but takes a list of prompts in one request: a row is one of them with one
token to draw, and they share passes as far as there are slots. Read off llama.cpp at 0c1e570.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, Mapping, Sequence
from contextlib import aclosing
from dataclasses import replace
from typing import Any

from pydantic import BaseModel, ConfigDict

from specollama.backends.engines.base import (
    REPLACEMENT,
    Capabilities,
    DrawSettings,
    EngineInfo,
    PromptPosition,
    SampledToken,
    ScoringRequest,
    StreamPiece,
    seed_field,
)
from specollama.backends.engines.chat_completions import count_chat_tokens, list_models, stream_chat
from specollama.backends.engines.client import EngineClient, EngineKind
from specollama.backends.engines.detokenize import BatchDetokenizer
from specollama.errors import ModelMissing
from specollama.spec_decode.types import DoneReason, SamplingOptions, Token

_TOP = 2  # most probable tokens shown with a row: what a near-tie is told by
_RANDOM = -1  # a seed of each draw's own; without one all rows would share that which the server was started with


class Timings(BaseModel):
    """llama-server's own count of a reply, in tokens. The drafted ones are missing where it doesn't speculate."""

    prompt_n: int = 0
    cache_n: int = 0
    predicted_n: int = 0
    draft_n: int = 0
    draft_n_accepted: int = 0


class Chunk(BaseModel):
    """An event of /completion. `read`: index (from 1) of the socket read that completed this event."""

    model_config = ConfigDict(extra="ignore")

    content: str = ""
    stop: bool = False
    stop_type: str = ""
    timings: Timings = Timings()
    read: int = 0

    @property
    def reason(self) -> DoneReason:
        return DoneReason.LENGTH if self.stop_type == "limit" else DoneReason.STOP


class Props(BaseModel):
    """What /props says. `default_generation_settings` is required: it tells a llama-server from other servers."""

    model_config = ConfigDict(extra="ignore", protected_namespaces=())

    default_generation_settings: dict[str, Any]
    build_info: str = ""
    model_path: str = ""
    total_slots: int = 1


class LlamaServer(EngineClient):
    """The API of one llama-server."""

    kind = EngineKind("llama-server")
    capabilities = Capabilities(renders_chats=True, penalizes_prompt=True)
    idle_connections = 2  # it gives each connection a thread, so that idle ones would starve it

    async def props(self) -> Props:
        return await self.get("/props", Props)

    async def info(self) -> EngineInfo:
        named, props, model = await list_models(self), await self.props(), self.model
        if model not in (known := _names(named, props)):
            raise ModelMissing(f"{self.url} has no model {model!r} (there: {', '.join(known)})", url=self.url)
        context = props.default_generation_settings.get("n_ctx")
        return EngineInfo(model, props.build_info, context if isinstance(context, int) else None, props.total_slots)

    async def tokenize(self, text: str, *, whole: bool) -> list[int]:
        body = {"content": text, "add_special": whole, "parse_special": whole}
        return (await self.post("/tokenize", body, _Tokens)).tokens

    async def detokenize(self, runs: Sequence[Sequence[int]]) -> list[str]:
        return await BatchDetokenizer(self.tokenize, self._print).detokenize(runs)

    async def render(self, messages: Sequence[Mapping[str, Any]]) -> tuple[list[int], str]:
        prompt = await self.render_prompt(messages)
        return await self.tokenize(prompt, whole=True), prompt

    async def render_prompt(self, messages: Sequence[Mapping[str, Any]]) -> str:
        """The prompt that the server's own template makes of a chat."""
        return (await self.post("/apply-template", {"messages": list(messages)}, _Rendered)).prompt

    async def count_chat_tokens(self, messages: Sequence[Mapping[str, Any]]) -> int:
        return await count_chat_tokens(self, self.model, messages)

    async def score_positions(self, request: ScoringRequest, draws: DrawSettings) -> list[SampledToken | None]:
        places = request.positions()
        answers = await self.post_for_list("/completion", score_request_body(places, draws), _Answer)
        by_index = {answer.index: answer for answer in answers}
        if len(answers) != len(places) or set(by_index) != set(range(len(places))):
            raise self.broken_reply(f"{len(answers)} answers to {len(places)} prompts")
        return [_drawn(by_index[index]) for index in range(len(places))]

    async def stream(
        self, place: PromptPosition, limit: int | None, draws: DrawSettings
    ) -> AsyncGenerator[StreamPiece, None]:
        seed = draws.seed_at(place.position)
        options = replace(draws.options, num_predict=limit or -1, stop=(), seed=seed)
        body = completion_body(list(place.tokens), options)
        async with aclosing(self._chunks(body)) as chunks:
            async for chunk in chunks:
                yield StreamPiece(chunk.content, end=chunk.reason if chunk.stop else None)

    def chat(
        self, messages: Sequence[Mapping[str, Any]], limit: int | None, draws: DrawSettings
    ) -> AsyncGenerator[StreamPiece, None]:
        return stream_chat(self, self.model, messages, limit, sampling_body(draws.options), draws)

    async def complete(self, prompt: str, options: SamplingOptions) -> AsyncGenerator[Chunk, None]:
        """POST /completion, event by event; the last has `stop`."""
        async with aclosing(self._chunks(completion_body(prompt, options))) as chunks:
            async for chunk in chunks:
                yield chunk

    async def _chunks(self, body: dict[str, Any]) -> AsyncGenerator[Chunk, None]:
        async with aclosing(self.events("/completion", body)) as events:
            async for event, read in events:
                chunk = self._chunk(event, read)
                yield chunk
                if chunk.stop:
                    return
        raise self.broken_reply("the reply ended before its last event (no stop: true)")

    async def _print(self, tokens: Sequence[int]) -> str:
        return (await self.post("/detokenize", {"tokens": list(tokens)}, _Content)).content

    def _chunk(self, event: bytes, read: int) -> Chunk:
        chunk = self.validate(event, _Event)
        if chunk.error is not None:
            raise self.refusal(chunk.error, 200)
        return chunk.model_copy(update={"read": read})


class _Tokens(BaseModel):
    tokens: list[int]


class _Content(BaseModel):
    content: str


class _Rendered(BaseModel):
    prompt: str


class _Event(Chunk):
    error: Any = None


class _Shown(BaseModel):
    """An entry of `completion_probabilities`."""

    id: int
    token: str = ""
    logprob: float | None = None
    top_logprobs: list[_Shown] = []


class _Answer(BaseModel):
    """One prompt's answer. A part of a character is among `tokens`, but not in `content` nor the probabilities."""

    index: int = 0
    content: str
    tokens: list[int]
    stop_type: str
    completion_probabilities: list[_Shown] = []


def _drawn(answer: _Answer) -> SampledToken | None:
    if not answer.tokens:
        return None
    entry = answer.completion_probabilities[0] if answer.completion_probabilities else None
    top = tuple(Token(each.token, each.logprob, each.id) for each in entry.top_logprobs) if entry else ()
    text = "" if REPLACEMENT in answer.content or entry is None else answer.content
    return SampledToken(answer.tokens[0], text, answer.stop_type == "eos", entry.logprob if entry else None, top)


def _names(listed: Mapping[str, Any], props: Props) -> list[str]:
    """What its model may be called: as it is listed, or by its file."""
    file = props.model_path.replace("\\", "/").rpartition("/")[2]
    names = [*listed, file, file.removesuffix(".gguf")]
    return [name for name in dict.fromkeys(names) if name]


def sampling_body(options: SamplingOptions) -> dict[str, Any]:
    """The sampling options by llama-server's names, which are Ollama's. `seed`: what holds unless one is given."""
    return {**options.distribution, "seed": _RANDOM}


def completion_body(prompt: str | list[int], options: SamplingOptions) -> dict[str, Any]:
    """A request of /completion that samples as Ollama would with these options."""
    return {
        "prompt": prompt,
        "stream": True,
        "cache_prompt": True,
        "n_predict": options.num_predict if options.num_predict > 0 else -1,
        **sampling_body(options),
        "stop": list(options.stop),
        **seed_field(options.seed),
    }


def score_request_body(places: Sequence[PromptPosition], draws: DrawSettings) -> dict[str, Any]:
    """One request for all rows."""
    return {
        "prompt": [list(place.tokens) for place in places],
        "n_predict": 1,
        "n_probs": _TOP,
        "cache_prompt": True,
        "return_tokens": True,
        "id_slot": -1,
        # else each answer has the whole prompt as text, and all settings
        "response_fields": ["index", "content", "tokens", "stop_type", "completion_probabilities"],
        **sampling_body(draws.options),
        **seed_field(draws.request_seed(places)),
    }
