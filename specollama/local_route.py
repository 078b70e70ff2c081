"""Whether a pair's target can be opened in process, from which file, and what to say where it can't."""

from __future__ import annotations

import asyncio
import platform
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from specollama.backends import store
from specollama.backends.facts import Model, passed_on
from specollama.backends.llama import offloads_to_gpu
from specollama.backends.ollama import OllamaDrafter, RetokenisedDrafter
from specollama.backends.requests import Requests
from specollama.backends.sources import ServedDrafter
from specollama.backends.vocabulary import LlamaVocabulary
from specollama.config import DraftRef, FileRef, Lookup, ModelRef, PairSettings
from specollama.errors import MissingPackage, RunError
from specollama.opened import OpenedPair, load_options, open_pair
from specollama.types import Route, Rule, SamplingOptions

_GPU_DEVICES = ("/dev/nvidia0", "/dev/kfd", "/dev/dxg")


class LocalRoute:
    """Opens the pair when it is first asked for, and keeps it until `close`."""

    def __init__(self, settings: PairSettings, environ: Mapping[str, str]) -> None:
        self._settings = settings
        self._environ = environ
        self._pair: OpenedPair | None = None
        self._opening = asyncio.Lock()
        self._wanted = settings.route in (Route.AUTO, Route.LOCAL) and settings.lookahead != 0
        self.remaining: tuple[ModelRef, ...] = ()  # drafts that only their server has

    async def close(self) -> None:
        if self._pair:
            await self._pair.close()
            self._pair = None

    async def pair(self, digest: str = "", options: Mapping[str, Any] | None = None) -> OpenedPair | str:
        """The opened pair, or why there is none; "" when that isn't worth a word. `digest`: the target's.

        Raises RunError when the target is a file, which nothing else than this can run.
        """
        settings = self._settings
        if not self._wanted and not isinstance(settings.target, FileRef):
            return ""
        async with self._opening:
            if self._pair is None:
                try:
                    found = await self._open(digest, {**settings.options, **(options or {})})
                except RunError as error:
                    if isinstance(settings.target, FileRef):
                        raise
                    return f"local: {error}"
                if isinstance(found, str):
                    return found
                self._pair = found
        return self._pair

    async def _open(self, digest: str, options: Mapping[str, Any]) -> OpenedPair | str:
        target = self._file(self._settings.target, digest)
        if target is None:
            forced = self._settings.route is Route.LOCAL
            looked = ", ".join(str(place) for place in store.places(self._environ))
            return f"{self._settings.target} isn't in a model store on this machine ({looked})" if forced else ""
        if self._settings.route is Route.AUTO and (why := why_not_here()):
            return why
        drafts, notices = await self._drafts()
        lookup = Lookup.LOOKUP in self._settings.drafts or len(self._settings.drafts) == 1
        pair = await open_pair(target, drafts, load_options(options, self._settings), lookup=lookup)
        pair.notices += notices
        return pair

    async def _drafts(self) -> tuple[dict[str, Path], list[str]]:
        """The files of the draft models, and a line for each that can't be opened."""
        files, notices, remaining = dict[str, Path](), list[str](), list[ModelRef]()
        for draft in self._settings.drafts:
            try:
                file = self._file(draft)
            except RunError as error:
                notices.append(str(error))
                continue
            if file is not None:
                files[str(draft)] = file
            elif isinstance(draft, ModelRef):
                remaining.append(draft)
        self.remaining = tuple(remaining)
        return files, notices

    def _file(self, model: DraftRef, digest: str = "") -> Path | None:
        if isinstance(model, FileRef):
            return model.path
        return store.weights(model.model, self._environ, digest) if isinstance(model, ModelRef) else None


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
    requests = Requests(model.name, sampling, passed_on(settings.options), settings.keep_alive)
    drafter = OllamaDrafter(model.server, requests, rule=Rule.MATCH, seed=0, row_tokens=model.row_tokens)
    return ServedDrafter(model.name, RetokenisedDrafter(drafter, vocabulary))
