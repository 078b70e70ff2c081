"""A fresh start before each reply: no KV cache of its prompt, and nothing learnt from an earlier reply to it."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from pathlib import Path

from specollama.backends.ollama.client import OllamaServer
from specollama.backends.ollama.model_name import full_name
from specollama.backends.ollama.request_bodies import RequestTemplate
from specollama.backends.ollama.schema import RunningModel
from specollama.config.settings import ModelRef
from specollama.errors import EndpointError, Unreachable
from specollama.spec_decode.types import SamplingOptions

_LOOKS = 100  # at /api/ps, until an unloaded model is no longer listed
_PAUSE = 0.1  # seconds between two looks
_STAYS = timedelta(minutes=1)  # a model that expires later than that wasn't unloaded


@dataclass(slots=True)
class LearnedState:
    """Folder in which a side saves its measured costs and its acceptance counts.

    Empty when the run begins, so that earlier runs over the same prompts don't count. Each first reply finds what the
    prompts before it have taught; a repeat finds the same.
    """

    folder: Path
    _before: dict[Path, bytes] = field(default_factory=dict)

    def begin(self, *, again: bool) -> None:
        """Before a reply. `again`: it repeats one, and starts from what was known before that one."""
        if not again:
            self._before = {file: file.read_bytes() for file in self._files()}
            return
        for file in self._files():
            file.unlink()
        for file, content in self._before.items():
            file.write_bytes(content)

    def _files(self) -> list[Path]:
        return [file for file in self.folder.rglob("*") if file.is_file()]


async def unload(model: ModelRef, environ: Mapping[str, str]) -> bool:
    """Have the model's Ollama drop it from memory, KV cache and all; whether it did. Raises Unreachable."""
    at = model.endpoint
    async with OllamaServer(at.url, **at.connection_settings(environ)) as server:
        try:
            await server.generate(RequestTemplate(model.model, SamplingOptions()).unload())
            for _ in range(_LOOKS):
                listed = [entry for entry in (await server.ps()).models if _is(entry, model.model)]
                if not listed:
                    return True
                if all(map(_stays, listed)):
                    return False
                await asyncio.sleep(_PAUSE)
        except Unreachable:
            raise
        except EndpointError:
            return False  # it isn't an Ollama, or has no such model: its first request will say so
    return False


def _is(entry: RunningModel, name: str) -> bool:
    return full_name(entry.name) == full_name(name)


def _stays(entry: RunningModel) -> bool:
    """Whether a server ignores a request to unload a model, as the embedded one does."""
    try:
        expires = datetime.fromisoformat(entry.expires_at)
    except ValueError:
        return False
    return expires.tzinfo is not None and expires - datetime.now(UTC) > _STAYS


async def load(model: ModelRef, requests: RequestTemplate, environ: Mapping[str, str]) -> None:
    """Have the model's Ollama load it, and write nothing. Raises EndpointError."""
    at = model.endpoint
    async with OllamaServer(at.url, **at.connection_settings(environ)) as server:
        await server.generate(requests.load_only())
