"""The pair's models on Ollama servers: connections, descriptions and tokenizers, shared by all replies."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from contextlib import AsyncExitStack
from dataclasses import dataclass, field
from time import monotonic

from specollama.backends.llama_cpp.tokenizer import LlamaTokenizer
from specollama.backends.ollama.client import OllamaServer
from specollama.backends.ollama.model_info import ModelInfo, fetch_model_info
from specollama.backends.ollama.tokenizer import load_tokenizers
from specollama.config.endpoints import Endpoint
from specollama.config.settings import PairSettings, ollama_endpoint
from specollama.errors import EndpointError, ModelMissing, UnsupportedPair
from specollama.pairs.feasibility import why_drafting_is_off
from specollama.pairs.tokenizers import TokenizerMatch, compare_tokenizers

_MODEL_INFO_TTL = 10.0  # seconds until model information is fetched again: a tag may point to another model by then


@dataclass(slots=True)
class _Cache:
    models: tuple[ModelInfo, ModelInfo | str] | None = None
    fetched_at: float = 0.0  # monotonic time of the fetch, in seconds
    draft: ModelInfo | str = ""  # the draft model of a target that isn't on an Ollama
    tokenizers: dict[tuple[str, str], TokenizerMatch] = field(default_factory=dict)  # by digests of target and draft
    lock: asyncio.Lock = field(default_factory=asyncio.Lock)


class ServedModels:
    """Raises EndpointError from every call that asks a server. Close it with `close`."""

    def __init__(self, settings: PairSettings, environ: Mapping[str, str]) -> None:
        ollama = ollama_endpoint(settings.target)
        self._stack = AsyncExitStack()
        self._target = str(settings.target)
        self._target_server = _connect(ollama, environ) if ollama else None
        self.draft_server = _connect(settings.draft.endpoint, environ) if settings.draft else None
        self._cache = _Cache()

    async def close(self) -> None:
        """Close the connections and the tokenizers."""
        for server in (self._target_server, self.draft_server):
            if server:
                self._stack.push_async_callback(server.aclose)
        await self._stack.aclose()

    @property
    def target_server(self) -> OllamaServer:
        """The Ollama server of the target. Raises UnsupportedPair if the target is a file or another engine's model."""
        if self._target_server is None:
            raise UnsupportedPair(f"{self._target} isn't served by an Ollama, which alone can do this")
        return self._target_server

    async def model_infos(self, settings: PairSettings) -> tuple[ModelInfo, ModelInfo | str]:
        """Return information on target and draft model (or why the draft is unavailable), cached for some seconds."""
        cache = self._cache
        if cache.models is None or monotonic() - cache.fetched_at > _MODEL_INFO_TTL:
            target, draft = await asyncio.gather(
                fetch_model_info(self.target_server, settings.target.model), self._describe_draft(settings)
            )
            if isinstance(draft, str) and settings.draft:
                return target, draft  # not cached: the draft server may be back at the next reply
            cache.models, cache.fetched_at = (target, draft), monotonic()
        return cache.models

    async def draft_info(self, settings: PairSettings) -> ModelInfo | str:
        """The draft model on a server, for a target that isn't on an Ollama; or the reason there is none."""
        async with self._cache.lock:
            if not isinstance(self._cache.draft, ModelInfo):
                self._cache.draft = await self._describe_draft(settings)
            return self._cache.draft

    async def _describe_draft(self, settings: PairSettings) -> ModelInfo | str:
        if self.draft_server is None or settings.draft is None or why_drafting_is_off(settings):
            return "no draft model"
        try:
            return await fetch_model_info(self.draft_server, settings.draft.model)
        except ModelMissing:
            raise  # a wrong name or a missing pull: a retry would not help
        except EndpointError as error:
            return f"the draft's server: {error}"

    async def tokenizers(self, target: ModelInfo, draft: ModelInfo | None) -> TokenizerMatch:
        """Return the target's tokenizer and whether the draft model shares it, cached by the models' digests."""
        cache = self._cache.tokenizers
        async with self._cache.lock:
            digests = target.digest, draft.digest if draft else ""
            if digests not in cache:
                ours, theirs = await load_tokenizers(target, draft)
                known = compare_tokenizers(ours, theirs)
                if known.target:
                    self._stack.callback(known.target.close)
                if isinstance(theirs, LlamaTokenizer):
                    theirs.close()
                if any(isinstance(side, EndpointError) for side in (ours, theirs)):
                    return known  # not cached: the next reply tries again
                cache[digests] = known
            return cache[digests]


def _connect(endpoint: Endpoint, environ: Mapping[str, str]) -> OllamaServer:
    return OllamaServer(endpoint.url, **endpoint.connection_settings(environ))
