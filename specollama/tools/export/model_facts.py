"""Facts about a pair's models that another engine's command line needs."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import PurePosixPath, PureWindowsPath
from typing import Any

from specollama.backends.llama_cpp import gguf_metadata
from specollama.backends.llama_cpp.gguf_metadata import read_header
from specollama.backends.ollama.client import OllamaServer
from specollama.backends.ollama.model_info import fetch_model_info
from specollama.config.settings import FileRef, ModelRef, PairSettings, PromptLookup
from specollama.errors import UsageError


@dataclass(frozen=True, slots=True)
class ModelFacts:
    """A model. `metadata`: its GGUF's, empty where none is known; `file`: that GGUF's path, on the machine `where`."""

    name: str
    metadata: Mapping[str, Any] = field(default_factory=dict, repr=False)
    file: str = ""
    where: str = ""

    @property
    def tokens(self) -> list[str]:
        """Its vocabulary; empty where it isn't known."""
        return list(self.metadata.get("tokenizer.ggml.tokens") or ())


async def describe_models(settings: PairSettings, environ: Mapping[str, str]) -> tuple[ModelFacts, ModelFacts]:
    """The target, and the draft model. Raises UsageError for a pair without one, EndpointError, RunError."""
    draft = next((draft for draft in settings.drafts if not isinstance(draft, PromptLookup)), None)
    if draft is None:
        raise UsageError(f"{settings.name or 'this pair'} has no draft model that an engine could run")
    target, drafting = await asyncio.gather(_described(settings.target, environ), _described(draft, environ))
    return target, drafting


async def _described(model: FileRef | ModelRef, environ: Mapping[str, str]) -> ModelFacts:
    if isinstance(model, FileRef):
        gguf_metadata.refuse_unreadable(model.path)
        header = await asyncio.to_thread(read_header, model.path)
        return ModelFacts(model.model, header.fields, str(model.path), "this machine")
    if model.is_scoring_engine:
        return ModelFacts(model.model)
    at = model.endpoint
    async with OllamaServer(at.url, **at.connection_settings(environ)) as server:
        known = await fetch_model_info(server, model.model)
        show = await server.show(model.model, verbose=True)
    weights = re.search(r"^FROM (.+)$", known.show.modelfile, re.MULTILINE)
    path = weights[1].strip().strip('"') if weights else ""
    known_file = PurePosixPath(path).is_absolute() or PureWindowsPath(path).is_absolute()
    return ModelFacts(model.model, show.model_info, path if known_file else "", at.url)
