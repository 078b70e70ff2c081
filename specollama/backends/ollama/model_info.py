"""Facts about a model on a server that decide whether it can draft or verify.

Versions: repeat_penalty was 1.1 by default before 0.32.10; rendering without answering came with
0.11.5, log-probabilities with 0.12.11; from then until
0.15.4 the Go runner lost the last token of num_predict; llama-server, whose sampler order is known, is the
engine from 0.30 on.
"""

from __future__ import annotations

import ast
import asyncio
import json
import re
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import Any

from specollama.backends.ollama.client import OllamaServer
from specollama.backends.ollama.model_name import full_name
from specollama.backends.ollama.schema import PASSED_ON_OPTIONS, ListedModel, ShowReply
from specollama.errors import EndpointError
from specollama.spec_decode.types import SamplingOptions

DEVELOPMENT_VERSION = (0, 0, 0)  # what a server built from source calls itself


@dataclass(frozen=True, slots=True)
class ModelInfo:
    """A model as its server describes it. `digest` is hexadecimal; "" when the server doesn't list the model."""

    name: str
    server: OllamaServer
    version: tuple[int, ...]
    show: ShowReply
    digest: str = ""

    @property
    def parameters(self) -> dict[str, Any]:
        return parameters(self.show.parameters or "")

    @property
    def defaults(self) -> SamplingOptions:
        """The sampling options that this version uses where nothing is set."""
        old = self._before(0, 32, 10)
        return replace(SamplingOptions(), repeat_penalty=1.1) if old else SamplingOptions()

    @property
    def engine(self) -> str:
        """The program that runs the model behind Ollama's API."""
        if self.show.details.format == "safetensors":
            return "MLX"
        return "Go runner" if self._before(0, 30) else "llama-server"

    @property
    def has_logprobs(self) -> bool:
        return not self._before(0, 12, 11)

    @property
    def renders_prompts(self) -> bool:
        """Whether the server can return the prompt of a chat; an older version would answer the chat instead."""
        return not self._before(0, 11, 5)

    @property
    def row_tokens(self) -> int:
        """The num_predict with which the server returns one token."""
        return 2 if self.has_logprobs and self._before(0, 15, 5) else 1

    @property
    def has_known_sampler(self) -> bool:
        """Whether the sampler works in llama.cpp's order, with nothing added by the model's own file."""
        own = any(key.startswith("general.sampling.") for key in self.show.model_info)
        return not self._before(0, 30) and self.show.details.format != "safetensors" and not own

    @property
    def can_think(self) -> bool:
        return "thinking" in self.show.capabilities

    @property
    def is_remote(self) -> bool:
        return bool(self.show.remote_host) or self.name.endswith((":cloud", "-cloud"))

    def speculates_natively(self, options: Mapping[str, Any]) -> bool:
        """Whether the server itself speculates; then some rows lack log-probabilities. `options`: those in effect.

        Ollama drafts 4 tokens where the Modelfile has a DRAFT, else none; `draft_num_predict` wins over both.
        """
        if (draft_tokens := options.get("draft_num_predict")) is not None:
            return bool(draft_tokens)
        return re.search(r"^DRAFT\s", self.show.modelfile, re.MULTILINE) is not None

    def _before(self, *version: int) -> bool:
        return self.version != DEVELOPMENT_VERSION and self.version < version


async def fetch_model_info(server: OllamaServer, name: str) -> ModelInfo:
    """Fetch a model's facts from its server. Raises ModelMissing with similar names, or another EndpointError."""
    version, show, listed = await asyncio.gather(server.version(), server.show(name), server.tags())
    return ModelInfo(name, server, parsed_version(version), show, _digest(name, listed))


def parsed_version(text: str) -> tuple[int, ...]:
    """`0.33.0-rc2` as (0, 33, 0)."""
    return tuple(int(number) for number in re.findall(r"\d+", text.split("-")[0])[:3])


def parameters(text: str) -> dict[str, Any]:
    """A Modelfile's PARAMETERs as /api/show prints them: a name, spaces, a value; `stop` may come several times."""
    values: dict[str, Any] = {}
    for line in text.splitlines():
        name, _, value = line.strip().partition(" ")
        if name == "stop":
            values.setdefault("stop", []).append(_value(value))
        elif name:
            values[name] = _value(value)
    return values


def _value(text: str) -> Any:
    text = text.strip()
    with suppress(ValueError):
        return json.loads(text)
    if text.startswith('"'):  # Go's own escapes, \x1b and \U000e0001, are Python's too
        with suppress(ValueError, SyntaxError):
            return ast.literal_eval(text)
    return text


def _digest(name: str, listed: list[ListedModel]) -> str:
    digest = next((model.digest for model in listed if full_name(model.name) == full_name(name)), "")
    return (
        digest if re.fullmatch("[0-9a-fA-F]*", digest) else ""
    )  # it becomes a file name: nothing but hexadecimal digits may be in it


def forwarded_options(requested: Mapping[str, Any]) -> dict[str, Any]:
    """The requested options that go into every request unchanged, without those that are None."""
    return {name: value for name, value in requested.items() if name in PASSED_ON_OPTIONS and value is not None}


async def context_length(model: ModelInfo) -> int | None:
    """Tokens a slot of the loaded model has; None when its server doesn't say."""
    try:
        running = (await model.server.ps()).models
    except EndpointError:
        return None
    return next((entry.context_length for entry in running if entry.digest == model.digest), None) or None
