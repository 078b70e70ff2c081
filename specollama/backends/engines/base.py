"""The interface between a scoring target and its engine: token ids in, sampled tokens out."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Protocol

from specollama.spec_decode.acceptance import position_seed
from specollama.spec_decode.types import DISTRIBUTION_OPTIONS, DoneReason, SamplingOptions, Token

REPLACEMENT = "\ufffd"  # what engines write for an incomplete character


@dataclass(frozen=True, slots=True)
class Capabilities:
    """What an engine's API can do.

    `one_pass`: the engine scores all places of a draft in one pass, at temperature 0. `renders_chats`: it returns the
    prompt that it makes of a chat. `detokenizes`: it returns the text of any token. `penalizes_prompt`: penalties
    count the prompt's tokens, so that a reply sent back as part of the prompt is penalised as before.

    `unsupported_options`: sampling options, by Ollama's names, that the engine lacks. `takes_seed`: a request may have
    a seed. `needs_seed`: a request must have one, or the engine samples all its rows with the same noise.
    """

    one_pass: bool = False
    renders_chats: bool = False
    detokenizes: bool = True
    penalizes_prompt: bool = False
    takes_seed: bool = True
    needs_seed: bool = False
    unsupported_options: frozenset[str] = frozenset()


@dataclass(frozen=True, slots=True)
class EngineInfo:
    """Facts that an engine reports about itself. None: not reported.

    `context_length`: tokens of prompt and reply together. `slots`: requests that the engine serves at once; None: no
    fixed number. `strips_leading_space`: the engine may drop the leading space of a token that it detokenizes alone.
    """

    name: str
    version: str = ""
    context_length: int | None = None
    slots: int | None = None
    strips_leading_space: bool = False


@dataclass(frozen=True, slots=True)
class SampledToken:
    """The engine's sample after a sequence of tokens.

    `text` is "" for a control token and for an incomplete character. `end`: the reply is over, and `token` is ignored.
    """

    token: int
    text: str = ""
    end: bool = False
    logprob: float | None = None
    top: tuple[Token, ...] = ()


@dataclass(frozen=True, slots=True)
class StreamPiece:
    """A piece of a stream without speculation.

    The last piece has `end`, and `hidden_tokens`: the number of the stream's tokens without text. `missing`:
    which part of the reply isn't shown, and why.
    """

    text: str
    hidden_tokens: int = 0
    end: DoneReason | None = None
    missing: str = ""


@dataclass(frozen=True, slots=True)
class DrawSettings:
    """How the engine samples: `options` at their effective values, and `seed`, from which position seeds are derived.

    `seed` None: requests have no seed. Otherwise each request has the seed of its position, so that no two positions
    share noise.
    """

    options: SamplingOptions
    seed: int | None = None

    def seed_at(self, position: int) -> int | None:
        return None if self.seed is None else position_seed(self.seed, position)

    def request_seed(self, places: Sequence[PromptPosition]) -> int | None:
        """The seed of a request. None for several rows, which would all share it."""
        return self.seed_at(places[0].position) if len(places) == 1 else None


@dataclass(frozen=True, slots=True)
class PromptPosition:
    """A text for the engine to continue. `position`: how many of its tokens belong to the reply."""

    tokens: Sequence[int]
    position: int = 0


@dataclass(frozen=True, slots=True)
class ScoringRequest:
    """The rows of a draft to score: row 0 follows `start`, row n follows the nth of the `drafted` tokens.

    The request asks for the rows from `first` up to, not including, `end`; `end` -1 stands for all rows.
    """

    start: PromptPosition
    drafted: Sequence[int] = ()
    first: int = 0
    end: int = field(default=-1)

    def __post_init__(self) -> None:
        if self.end < 0:
            object.__setattr__(self, "end", len(self.drafted) + 1)

    @property
    def is_whole(self) -> bool:
        return (self.first, self.end) == (0, len(self.drafted) + 1)

    def positions(self) -> list[PromptPosition]:
        """The text that each row continues."""
        before, position = list(self.start.tokens), self.start.position
        return [
            PromptPosition([*before, *self.drafted[:more]], position + more) for more in range(self.first, self.end)
        ]


def seed_field(seed: int | None) -> dict[str, int]:
    """The seed as a field of a request body; all engines call it `seed`."""
    return {} if seed is None else {"seed": seed}


_SHARED_NAMES = {
    "temperature": "temperature",
    "top_k": "top_k",
    "top_p": "top_p",
    "min_p": "min_p",
    "repeat_penalty": "repetition_penalty",
    "presence_penalty": "presence_penalty",
    "frequency_penalty": "frequency_penalty",
}
"""Sampling options of vLLM, SGLang and TensorRT-LLM: Ollama's name to theirs."""

UNSHARED_OPTIONS = frozenset(DISTRIBUTION_OPTIONS) - _SHARED_NAMES.keys() - {"repeat_last_n"}
"""Sampling options that these engines lack. `repeat_last_n` isn't one: 0 can be sent as neutral penalties."""


def sampling_fields(options: SamplingOptions, *, top_k: int) -> dict[str, Any]:
    """The sampling options by the names that vLLM, SGLang and TensorRT-LLM share.

    `top_k` is the engine's own value, because the engines write "no top_k" differently. The engines have no
    `repeat_last_n`; if it is 0, the penalties are sent as neutral values.
    """
    if not options.penalised:
        options = replace(options, repeat_penalty=1.0, presence_penalty=0.0, frequency_penalty=0.0)
    return {name: getattr(options, ollama_name) for ollama_name, name in _SHARED_NAMES.items()} | {"top_k": top_k}


class Engine(Protocol):
    """A server of one model, or several that serve the same one (`replicas`). Every call raises EndpointError."""

    url: str
    capabilities: Capabilities

    async def info(self) -> EngineInfo:
        """What the engine reports about itself. Raises ModelMissing with the names of the models that it has."""
        ...

    async def tokenize(self, text: str, *, whole: bool) -> list[int]:
        """The tokens of a text. `whole`: the text is a whole prompt, and gets a BOS token if the model wants one."""
        ...

    async def detokenize(self, runs: Sequence[Sequence[int]]) -> list[str]:
        """The text of each run of tokens, as in the middle of a text; REPLACEMENT for incomplete characters."""
        ...

    async def render(self, messages: Sequence[Mapping[str, Any]]) -> tuple[list[int], str]:
        """The prompt that the model's chat template makes: its tokens, and its text with all control tokens."""
        ...

    async def count_chat_tokens(self, messages: Sequence[Mapping[str, Any]]) -> int:
        """The number of tokens of the prompt that the engine makes of a chat."""
        ...

    async def score_positions(self, request: ScoringRequest, draws: DrawSettings) -> list[SampledToken | None]:
        """The sampled token of each row of the request, in order; None for a row that the engine didn't return."""
        ...

    def stream(
        self, place: PromptPosition, limit: int | None, draws: DrawSettings
    ) -> AsyncGenerator[StreamPiece, None]:
        """Stream the rest of a reply. The last piece has `end`. `limit`: tokens; None: no limit."""
        ...

    def chat(
        self, messages: Sequence[Mapping[str, Any]], limit: int | None, draws: DrawSettings
    ) -> AsyncGenerator[StreamPiece, None]:
        """Stream a whole reply to a chat from the engine's own chat endpoint."""
        ...


async def score_request(
    engine: Engine, request: ScoringRequest, draws: DrawSettings, *, by_row: bool
) -> list[SampledToken | None]:
    """Score a request's rows in one request or, with `by_row`, in concurrent requests of one row each.

    Raises EndpointError.
    """
    if not by_row or request.end - request.first < 2:
        return await engine.score_positions(request, draws)
    rows = (replace(request, first=row, end=row + 1) for row in range(request.first, request.end))
    answers = await asyncio.gather(*(engine.score_positions(row, draws) for row in rows))
    return [sampled for answer in answers for sampled in answer]
