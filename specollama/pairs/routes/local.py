"""Route `local`: finds the target's weights, loads the models in process, and plans and runs replies with them."""

from __future__ import annotations

import asyncio
import platform
from collections.abc import AsyncGenerator, Mapping
from contextlib import AsyncExitStack, aclosing
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from specollama.backends.llama_cpp.hardware import has_gpu_memory
from specollama.backends.llama_cpp.tokenizer import offloads_to_gpu
from specollama.backends.ollama import model_store
from specollama.backends.ollama.model_info import ModelInfo, context_length
from specollama.backends.ollama.schema import RunningModel
from specollama.config.settings import DraftRef, FileRef, ModelRef, PairSettings
from specollama.errors import EndpointError, MissingPackage, RunError, UnsupportedPair
from specollama.pairs.event_streams import split_thinking
from specollama.pairs.feasibility import (
    ReplyContext,
    merged_options,
    near_tie_text,
    request_needs_ollama,
    why_drafting_is_off,
)
from specollama.pairs.prompt import render_from_file
from specollama.pairs.served_drafters import ahead_drafters, make_served_drafter
from specollama.spec_decode.decode_loop import RoundObserver
from specollama.spec_decode.draft_ahead import OverlappedTarget
from specollama.spec_decode.events import Event, Status
from specollama.spec_decode.planner import report_reply_end
from specollama.spec_decode.sampler_support import sampler_obstacle
from specollama.spec_decode.types import Route

if TYPE_CHECKING:
    from specollama.pairs.routes.local_models import LocalModels

_NEEDED, _TRACED = 2, 5  # most probable tokens per position: for a comparison, and for a trace
_HERE = "http://localhost"  # the address that stands for this machine


_LOADING = ("num_ctx", "num_thread", "num_gpu", "use_mmap")  # options that require the models to be loaded again
BUSY = "the opened model is busy with another reply"


class LocalRoute:
    """Loads the pair's models at its first reply and holds them until `close`.

    `state`: the folder for saved timings and calibration; None: the user's state folder.
    """

    def __init__(self, environ: Mapping[str, str], state: Path | None = None) -> None:
        self._environ = environ
        self._state = state
        self._pair: LocalModels | None = None
        self._opened_by: tuple[object, ...] = ()  # the settings with which the models were loaded
        self._opening = asyncio.Lock()
        self._looked = False  # whether the server's memory was checked for the target
        self.remaining: tuple[ModelRef, ...] = ()  # draft models that are only available on a server

    async def close(self) -> None:
        pair, self._pair = self._pair, None  # before the await: no other task may get closed models
        if pair:
            await pair.close()

    @property
    def context_length(self) -> int | None:
        """Context length in tokens; None before the models are loaded."""
        return self._pair.context_length if self._pair else None

    async def open_models(
        self, settings: PairSettings, options: Mapping[str, Any], target: ModelInfo | None = None
    ) -> LocalModels | str:
        """Return the loaded models, or the reason there are none ("" if the reason need not be shown).

        `options`: Ollama's options of the request; those of the Modelfile are added. If the loading options or the
        target changed, the models are loaded again as soon as no reply uses the old ones.
        `target`: as its server describes it. Raises RunError when the target is a file, which nothing else can run.
        """
        if not isinstance(settings.target, FileRef) and settings.route not in (Route.AUTO, Route.LOCAL):
            return ""
        options = merged_options(target.parameters if target else {}, options)
        async with self._opening:
            digest = target.digest if target else self._opened_by[-1] if self._pair else ""
            loading = tuple(options.get(name) for name in _LOADING)
            wanted = *loading, settings.kv_type, settings.batch_threads, digest
            if self._pair and wanted != self._opened_by:
                if self._pair.reply_lock.locked() and not isinstance(settings.target, FileRef):
                    return BUSY
                async with self._pair.reply_lock:
                    await self.close()
            if self._pair is None:
                try:
                    found = await self._open(settings, options, target)
                except RunError as error:
                    if isinstance(settings.target, FileRef):
                        raise
                    return f"local: {error}"
                if isinstance(found, str):
                    return found
                self._pair, self._opened_by = found, wanted
        return self._pair

    async def loaded_twice_notice(self, target: ModelInfo) -> list[str]:
        """A notice, at most once, if the target's server holds the model in memory too."""
        if self._looked:
            return []
        self._looked = True
        try:
            running = (await target.server.ps()).models
        except EndpointError:
            return []
        return [loaded_twice_notice(entry, target.server.url) for entry in running if entry.digest == target.digest]

    async def plan_without_server(self, context: ReplyContext) -> LocalPlan:
        """Plan a reply without a server. Raises UnsupportedPair if the request needs one, RunError for other faults."""
        settings, ask = context.settings, context.request
        if obstacle := request_needs_ollama(context):
            raise UnsupportedPair(f"{settings.target} is opened without a server, which {obstacle} would need")
        if obstacle := sampler_obstacle(context.sampling):
            raise UnsupportedPair(f"no reply can be computed under these options: {obstacle}")
        opened = await self.open_models(settings, context.options)
        if isinstance(opened, str):
            raise RunError(opened)
        prompt = render_from_file(opened, ask)
        if reason := opened.why_full(prompt):
            raise RunError(f"{reason}: give a larger num_ctx")
        return LocalPlan(opened, prompt, context, ask.raw, notices=opened.pop_notices())

    async def _open(
        self, settings: PairSettings, options: Mapping[str, Any], target: ModelInfo | None
    ) -> LocalModels | str:
        from specollama.pairs.model_loading import load_options  # here, since numpy comes with it: 0.1 s at each start
        from specollama.pairs.routes.local_models import load_models

        weights = target_file(settings, self._environ, target.digest if target else "")
        if isinstance(weights, str):
            return weights
        if target and options.get("num_ctx") is None:
            options = {**options, "num_ctx": await context_length(target)}
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
        more = (draft for draft in self.remaining if draft != settings.draft)
        notices += [f"{draft} doesn't draft: it isn't on this machine, and one served model does" for draft in more]
        loading = load_options(options, settings)
        pair = await load_models(
            weights, files, loading, lookup=settings.uses_lookup, requantize=settings.requantize, state=self._state
        )
        pair.notices += notices
        return pair


def loaded_twice_notice(entry: RunningModel, url: str) -> str:
    """The notice about a model that is loaded here and on its server."""
    size = f"{entry.size / 2**30:.1f} GiB, " if entry.size else ""
    return f"{url} holds {entry.name} in memory, too ({size}for rendering): `keep_alive = 0` in the pair frees it"


def target_file(settings: PairSettings, environ: Mapping[str, str], digest: str = "") -> Path | str:
    """Path of the target's weights, or the reason not to load them ("" if the reason need not be shown).

    `digest`: the target's digest, as its server lists it. Raises RunError if the weights exist and can't be used.
    """
    target = _file(settings.target, environ, digest)
    if target is None:
        looked = ", ".join(str(place) for place in model_store.store_folders(environ))
        forced = settings.route is Route.LOCAL
        return f"{settings.target} isn't in a model store on this machine ({looked})" if forced else ""
    why = why_not_local() if settings.route is Route.AUTO and isinstance(settings.target, ModelRef) else ""
    return why or target


def _file(model: DraftRef, environ: Mapping[str, str], digest: str = "") -> Path | None:
    if isinstance(model, FileRef):
        return model.path
    return model_store.find_weights(model.model, environ, digest) if isinstance(model, ModelRef) else None


def why_not_local() -> str:
    """The reason, in one line, why loading a model in process would be slow on this machine; "" if there is none."""
    try:
        offloads = offloads_to_gpu()
    except MissingPackage as error:
        return f"local: {error}"
    gpu = (platform.system(), platform.machine()) == ("Darwin", "arm64") or has_gpu_memory()
    return "local: this machine has a GPU that the installed llama.cpp wasn't built for" if gpu and not offloads else ""


def _quantisation(plan: LocalPlan) -> str:
    """llama.cpp's name of the target's quantization; "" if unknown."""
    if plan.context.target:
        return plan.context.target.show.details.quantization_level
    try:
        from gguf import LlamaFileType  # here, since hardly any target is a file without a server

        kind = LlamaFileType(int(plan.models.target.model.metadata("general.file_type")))
    except (ImportError, ValueError):  # no file type, or one that this version of the package lacks
        return ""
    name: str = kind.name
    return name.removeprefix("ALL_").removeprefix("MOSTLY_")


async def local_events(
    plan: LocalPlan, settings: PairSettings, watch: RoundObserver | None = None
) -> AsyncGenerator[Event, None]:
    """Yield the events of a reply with models in process. Close it to stop. `watch` is called after each round."""
    opened, sampling = plan.models, plan.context.sampling
    async with opened.reply_lock:
        others = [
            make_served_drafter(model, plan.context, _HERE, opened.target.vocabulary) for model in plan.served_drafts
        ]
        shown = _TRACED if watch else _NEEDED
        speculation = opened.make_decoder(plan.prompt, sampling, settings, others, shown)
        speculation.observer = watch
        ahead = ahead_drafters(others)
        speculation.target = OverlappedTarget(speculation.target, ahead)
        drafting = bool(opened.drafts or opened.drafters.lookup or others)
        off = why_drafting_is_off(settings) or (None if drafting else "no draft model can be used")
        near = [near_tie_text(_quantisation(plan))] if sampling.greedy and off is None else []
        words = "; ".join([off or f"local, lookahead {speculation.lookahead}", *filter(None, near), *plan.notices])
        speculation.stats.reason = off or ""
        yield Status(on=off is None, detail=words)
        async with AsyncExitStack() as stack:
            for drafter in ahead:
                await stack.enter_async_context(aclosing(drafter))
            events = await stack.enter_async_context(aclosing(speculation.events()))
            async for event in split_thinking(events, plan.prompt, plan.thinks):
                report_reply_end(speculation.lookahead, event)
                yield event


@dataclass(frozen=True, slots=True)
class LocalPlan:
    """Plan of one reply with a target loaded in process. `thinks`: the target may think before it answers."""

    models: LocalModels
    prompt: str
    context: ReplyContext
    raw: bool = False
    thinks: bool = False
    notices: tuple[str, ...] = ()
    served_drafts: tuple[ModelInfo, ...] = ()  # draft models that run on a server
    route: Route = Route.LOCAL
