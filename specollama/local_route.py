"""Whether a pair's target can be opened in process, from which file, and what to say where it can't."""

from __future__ import annotations

import asyncio
import platform
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from specollama.backends import store
from specollama.backends.facts import Model, context_length
from specollama.backends.ollama import OllamaDrafter, RetokenisedDrafter
from specollama.backends.sources import ServedDrafter
from specollama.backends.vocabulary import LlamaVocabulary, offloads_to_gpu
from specollama.config import DraftRef, FileRef, Lookup, ModelRef, PairSettings
from specollama.engine.ahead import DraftAhead
from specollama.errors import MissingPackage, RunError
from specollama.hosts import apart
from specollama.plan import requests_for
from specollama.types import Route, Rule, SamplingOptions

if TYPE_CHECKING:
    from specollama.opened import OpenedPair

_GPU_DEVICES = ("/dev/nvidia0", "/dev/kfd", "/dev/dxg")


class LocalRoute:
    """Opens the pair when it is first asked for, and keeps it until `close`."""

    def __init__(self, environ: Mapping[str, str]) -> None:
        self._environ = environ
        self._pair: OpenedPair | None = None
        self._opening = asyncio.Lock()
        self.remaining: tuple[ModelRef, ...] = ()  # drafts that only their server has

    async def close(self) -> None:
        if self._pair:
            await self._pair.close()
            self._pair = None

    async def pair(
        self, settings: PairSettings, options: Mapping[str, Any], target: Model | None = None
    ) -> OpenedPair | str:
        """The opened pair, or why there is none; "" when that isn't worth a word.

        `options`: Ollama's, by which it is opened the first time; `target`: as its server describes it. Raises
        RunError when the target is a file, which nothing else than this can run.
        """
        if not isinstance(settings.target, FileRef) and settings.route not in (Route.AUTO, Route.LOCAL):
            return ""
        async with self._opening:
            if self._pair is None:
                try:
                    found = await self._open(settings, options, target)
                except RunError as error:
                    if isinstance(settings.target, FileRef):
                        raise
                    return f"local: {error}"
                if isinstance(found, str):
                    return found
                self._pair = found
        return self._pair

    async def _open(self, settings: PairSettings, options: Mapping[str, Any], target: Model | None) -> OpenedPair | str:
        from specollama.opened import load_options, open_pair  # here, since numpy comes with it: 0.1 s at each start

        weights = target_file(settings, self._environ, target.digest if target else "")
        if isinstance(weights, str):
            return weights
        if target and "num_ctx" not in options:
            options = {**options, "num_ctx": target.parameters.get("num_ctx") or await context_length(target)}
        files, notices = dict[str, Path](), list[str]()
        for draft in settings.drafts:
            try:
                if file := _file(draft, self._environ):
                    files[str(draft)] = file
            except RunError as error:
                notices.append(str(error))
        self.remaining = tuple(
            draft for draft in settings.drafts if isinstance(draft, ModelRef) and str(draft) not in files
        )
        lookup = Lookup.LOOKUP in settings.drafts or len(settings.drafts) == 1
        loading = load_options(options, settings)
        pair = await open_pair(weights, files, loading, lookup=lookup, requantize=settings.requantize)
        pair.notices += notices
        return pair


def target_file(settings: PairSettings, environ: Mapping[str, str], digest: str = "") -> Path | str:
    """The target's weights on this machine, or why they aren't to be opened; "" when that isn't worth a word.

    `digest`: of the target, as its server lists it. Raises RunError when they are there and can't be used.
    """
    target = _file(settings.target, environ, digest)
    if target is None:
        looked = ", ".join(str(place) for place in store.places(environ))
        forced = settings.route is Route.LOCAL
        return f"{settings.target} isn't in a model store on this machine ({looked})" if forced else ""
    why = why_not_here() if settings.route is Route.AUTO and isinstance(settings.target, ModelRef) else ""
    return why or target


def _file(model: DraftRef, environ: Mapping[str, str], digest: str = "") -> Path | None:
    if isinstance(model, FileRef):
        return model.path
    return store.weights(model.model, environ, digest) if isinstance(model, ModelRef) else None


def why_not_here() -> str:
    """Why opening a model in process is no good idea on this machine, in a line; "" where nothing speaks against it."""
    try:
        offloads = offloads_to_gpu()
    except MissingPackage as error:
        return f"local: {error}"
    gpu = (platform.system(), platform.machine()) == ("Darwin", "arm64") or any(map(_there, _GPU_DEVICES))
    return "local: this machine has a GPU that the installed llama.cpp wasn't built for" if gpu and not offloads else ""


def _there(device: str) -> bool:
    return Path(device).exists()


def served(
    model: Model, sampling: SamplingOptions, settings: PairSettings, vocabulary: LlamaVocabulary
) -> ServedDrafter:
    """A draft model on its own server, for a target that is opened here: it drafts by text."""
    requests = requests_for(model, sampling, settings.options, settings)
    ollama = OllamaDrafter(model.server, requests, rule=Rule.MATCH, seed=0, row_tokens=model.row_tokens)
    drafter = RetokenisedDrafter(ollama, vocabulary)
    elsewhere = apart(model.server.url, "http://localhost")
    ahead = elsewhere if settings.draft_ahead is None else settings.draft_ahead
    return ServedDrafter(model.name, DraftAhead(drafter) if ahead else drafter)
