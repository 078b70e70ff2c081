"""The interface between a scoring target and its engine: token ids in, sampled tokens out."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Protocol

from specollama.spec_decode.acceptance import position_seed
from specollama.spec_decode.types import DISTRIBUTION_OPTIONS, DoneReason, SamplingOptions, Token

REPLACEMENT = "\ufffd"  # what tokenizers print for a part of a character


@dataclass(frozen=True, slots=True)
class Capabilities:
    """What an engine's API can do.

    `one_pass`: all places of a draft are scored in one pass, at temperature 0. `renders_chats`: it tells what prompt it
    makes of a chat. `detokenizes`: it tells what any token prints. `penalizes_prompt`: penalties count the tokens of
    the prompt, so that a reply sent again is penalised as before.

    `unsupported_options`: sampling options by Ollama's names that it doesn't have. `takes_seed`: one seed for each
    request may be given; `needs_seed`: and has to be, since without one all rows of a request would be drawn alike.
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

    `context_length`: tokens of a text, the reply's included; `slots`: requests that it works on at once, None: as many
    as it likes. `strips_leading_space`: a token printed by itself may be without its leading space.
    """

    name: str
    version: str = ""
    context_length: int | None = None
    slots: int | None = None
    strips_leading_space: bool = False


@dataclass(frozen=True, slots=True)
class SampledToken:
    """The engine's sample after a sequence of tokens.

    `text` is "" where the token has none of its own: a control token, a part of a character. `end`: the reply is over,
    `token` then doesn't count.
    """

    token: int
    text: str = ""
    end: bool = False
    logprob: float | None = None
    top: tuple[Token, ...] = ()


@dataclass(frozen=True, slots=True)
class StreamPiece:
    """A piece of a plain stream. `end`: the stream is over, and so many tokens of it had no text (`hidden_tokens`).

    `missing`: what of the reply isn't shown, and why.
    """

    text: str
    hidden_tokens: int = 0
    end: DoneReason | None = None
    missing: str = ""


@dataclass(frozen=True, slots=True)
class DrawSettings:
    """How tokens are drawn: `options` at their effective value, and `seed`, the base of the position seeds.

    None: each draw is fresh. A seed of a request is that of its place, so that no two places share their noise.
    """

    options: SamplingOptions
    seed: int | None = None

    def seed_at(self, position: int) -> int | None:
        return None if self.seed is None else position_seed(self.seed, position)

    def request_seed(self, places: Sequence[PromptPosition]) -> int | None:
        """A request's. One serves all its rows, so that it is given for a single row only."""
        return self.seed_at(places[0].position) if len(places) == 1 else None


@dataclass(frozen=True, slots=True)
class PromptPosition:
    """Tokens that an engine is to continue: the whole text so far, and of it the reply's number of tokens."""

    tokens: Sequence[int]
    position: int = 0


@dataclass(frozen=True, slots=True)
class ScoringRequest:
    """The rows along a draft: after `start`, and after each of the `drafted` tokens beyond, those from `first` to
    before `end`."""

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
        """Each row's own place."""
        before, position = list(self.start.tokens), self.start.position
        return [
            PromptPosition([*before, *self.drafted[:more]], position + more) for more in range(self.first, self.end)
        ]


def seed_field(seed: int | None) -> dict[str, int]:
    """The field that every engine has for it."""
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
"""The sampling options that vLLM, SGLang and TensorRT-LLM have, with their names for them."""

UNSHARED_OPTIONS = frozenset(DISTRIBUTION_OPTIONS) - _SHARED_NAMES.keys() - {"repeat_last_n"}
"""The sampling options that these engines don't have. `repeat_last_n` 0 takes the penalties off, which can be sent."""


def sampling_fields(options: SamplingOptions, *, top_k: int) -> dict[str, Any]:
    """The sampling options by the names that vLLM, SGLang and TensorRT-LLM share; their words for no `top_k` differ.

    They have no `repeat_last_n`: where it is 0, which takes the penalties off, none is sent.
    """
    if not options.penalised:
        options = replace(options, repeat_penalty=1.0, presence_penalty=0.0, frequency_penalty=0.0)
    return {name: getattr(options, ours) for ours, name in _SHARED_NAMES.items()} | {"top_k": top_k}


class Engine(Protocol):
    """One server of one model; several, too (`replicas`). Every call raises EndpointError."""

    url: str
    capabilities: Capabilities

    async def info(self) -> EngineInfo:
        """Raises ModelMissing with the names that are there."""
        ...

    async def tokenize(self, text: str, *, whole: bool) -> list[int]:
        """The tokens of a text; of a `whole` prompt with the begin marker that the model wants."""
        ...

    async def detokenize(self, runs: Sequence[Sequence[int]]) -> list[str]:
        """What each run of tokens prints in the middle of a text. Parts of characters print REPLACEMENT."""
        ...

    async def render(self, messages: Sequence[Mapping[str, Any]]) -> tuple[list[int], str]:
        """A chat as a prompt, by the model's own template: its tokens, and their text with all markers."""
        ...

    async def count_chat_tokens(self, messages: Sequence[Mapping[str, Any]]) -> int:
        """The number of tokens of the prompt that it makes of a chat."""
        ...

    async def score_positions(self, request: ScoringRequest, draws: DrawSettings) -> list[SampledToken | None]:
        """What is drawn at each of the request's places; None where it isn't known."""
        ...

    def stream(
        self, place: PromptPosition, limit: int | None, draws: DrawSettings
    ) -> AsyncGenerator[StreamPiece, None]:
        """The rest of a reply in one go; the last piece has `end`."""
        ...

    def chat(
        self, messages: Sequence[Mapping[str, Any]], limit: int | None, draws: DrawSettings
    ) -> AsyncGenerator[StreamPiece, None]:
        """A whole reply to a chat by the engine's own chat endpoint."""
        ...


async def score_request(
    engine: Engine, request: ScoringRequest, draws: DrawSettings, *, by_row: bool
) -> list[SampledToken | None]:
    """A request's rows, together or (`by_row`) as requests of their own, all at once. Raises EndpointError."""
    if not by_row or request.end - request.first < 2:
        return await engine.score_positions(request, draws)
    rows = (replace(request, first=row, end=row + 1) for row in range(request.first, request.end))
    answers = await asyncio.gather(*(engine.score_positions(row, draws) for row in rows))
    return [drawn for answer in answers for drawn in answer]
