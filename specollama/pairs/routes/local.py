"""Route `local`: finds the target's weights, loads the models in process, and plans and runs replies with them."""

from __future__ import annotations

import asyncio
import platform
from collections.abc import AsyncGenerator, Callable, Mapping
from contextlib import AsyncExitStack, aclosing
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from specollama.backends.llama_cpp.hardware import has_gpu_memory
from specollama.backends.llama_cpp.tokenizer import offloads_to_gpu
from specollama.backends.ollama import model_store
from specollama.backends.ollama.model_info import ModelInfo, context_length
from specollama.backends.ollama.schema import RunningModel
from specollama.config.endpoints import THIS_MACHINE, on_different_machines
from specollama.config.settings import DraftRef, FileRef, ModelRef, PairSettings
from specollama.errors import EndpointError, MissingPackage, RunError, UnsupportedPair
from specollama.pairs.event_streams import split_thinking
from specollama.pairs.feasibility import (
    BUSY,
    ReplyContext,
    near_tie_text,
    request_needs_ollama,
    why_drafting_is_off,
    why_not_split,
)
from specollama.pairs.prompt import NoPrompt, render_from_file, render_on_server
from specollama.pairs.routes.base import Plan
from specollama.pairs.routing import ReplyRoute, RouteFacts
from specollama.pairs.served_drafters import ahead_drafters, make_served_drafter
from specollama.pairs.served_models import ServedModels
from specollama.pairs.slots import SlotPool
from specollama.spec_decode.decode_loop import RoundObserver
from specollama.spec_decode.draft_ahead import OverlappedTarget
from specollama.spec_decode.events import Event, Status
from specollama.spec_decode.planner import report_reply_end
from specollama.spec_decode.sampler_support import sampler_obstacle
from specollama.spec_decode.types import Route

if TYPE_CHECKING:
    from specollama.pairs.routes.local_models import LocalModels

_NEEDED, _TRACED = 2, 5  # most probable tokens per position: for a comparison, and for a trace
_LOADING = ("num_ctx", "num_thread", "num_gpu", "use_mmap")  # options that require the models to be loaded again


class LocalObstacle(str):
    """Why a target whose weights are on this machine isn't opened in process; "" if it can be."""

    __slots__ = ()


class PackageMissing(LocalObstacle):
    """Why: a package isn't installed."""

    __slots__ = ()


class LocalRoute(ReplyRoute):
    """Loads the pair's models at its first reply and holds them until `close`.

    `state`: the folder for saved timings and calibration; None: the user's state folder. `served`: the pair's models on
    servers, of which a draft model may draft; None: only models that are opened here draft.
    """

    def __init__(
        self, environ: Mapping[str, str], state: Path | None = None, served: ServedModels | None = None
    ) -> None:
        self._environ = environ
        self._state = state
        self._served = served
        self._pair: LocalModels | None = None
        self._opened_by: tuple[object, ...] = ()  # the settings with which the models were loaded
        self._opening = asyncio.Lock()
        self._looked = False  # whether the server's memory was checked for the target
        self.remaining: tuple[ModelRef, ...] = ()  # draft models that are only available on a server

    async def close(self) -> None:
        pair, self._pair = self._pair, None  # before the await: no other task may get closed models
        if pair:
            await pair.close()

    async def unload(self) -> None:
        """Free the models as soon as no reply uses them. The next reply loads them again."""
        async with self._opening:
            if self._pair:
                async with self._pair.reply_lock:
                    await self.close()

    @property
    def loaded(self) -> LocalModels | None:
        """The models, while they are in memory."""
        return self._pair

    @property
    def context_length(self) -> int | None:
        """Context length in tokens; None before the models are loaded."""
        return self._pair.context_length if self._pair else None

    async def plan(self, facts: RouteFacts) -> Plan:
        """Plan a reply. A target that its server describes was planned when the facts were gathered."""
        if facts.local is None or isinstance(facts.local, str | Path):
            return await self._plan_without_server(facts.context)
        return facts.local

    async def plan_or_reason(self, context: ReplyContext, draft: ModelInfo | str) -> LocalPlan | str:
        """Plan a reply of a target that its server describes; or the reason not to ("" if it need not be shown).

        `draft`: the draft model as its server describes it, or the reason there is none.
        """
        target = context.target
        assert target is not None
        models = await self.open_models(context)
        if isinstance(models, str):
            return models
        if models.reply_lock.locked():
            return BUSY
        if reason := why_not_split(target, models.target.vocabulary):
            return reason
        prompt = await render_on_server(context, target, models.target.vocabulary, in_process=True)
        if isinstance(prompt, NoPrompt):
            return prompt.reason
        if reason := models.why_full(prompt):
            return reason
        models.notices += await self.loaded_twice_notice(target)
        plan = LocalPlan(models, prompt, context, target.can_think, models.pop_notices())
        return await self._with_served_draft(plan, draft)

    async def plan_while_unreachable(self, context: ReplyContext) -> LocalPlan | None:
        """Plan a reply while the target's server can't be reached; None if the target isn't in a store here."""
        models = await self.open_models(context)
        if isinstance(models, str):
            return None
        models.notices.append("its server can't be reached: the file's own template, and no Modelfile's options")
        return await self._plan_without_server(context)

    async def _plan_without_server(self, context: ReplyContext) -> LocalPlan:
        """Plan a reply without a server. Raises UnsupportedPair if the request needs one, RunError for other faults."""
        settings = context.settings
        if obstacle := request_needs_ollama(context):
            raise UnsupportedPair(f"{settings.target} is opened without a server, which {obstacle} would need")
        if obstacle := sampler_obstacle(context.sampling):
            raise UnsupportedPair(f"no reply can be computed under these options: {obstacle}")
        models = await self.open_models(context)
        if isinstance(models, str):
            raise RunError(models)
        prompt = render_from_file(models, context.request)
        if reason := models.why_full(prompt):
            raise RunError(f"{reason}: give a larger num_ctx")
        return await self._with_served_draft(LocalPlan(models, prompt, context, notices=models.pop_notices()))

    async def _with_served_draft(self, plan: LocalPlan, draft: ModelInfo | str | None = None) -> LocalPlan:
        """Add the draft model that is only available on its server, or a notice why it doesn't draft."""
        settings = plan.context.settings
        if self._served is None or why_drafting_is_off(settings) or settings.draft not in self.remaining:
            return plan
        found = draft or await self._served.draft_info(settings)
        if isinstance(found, str):
            return replace(plan, notices=(found, *plan.notices))
        return replace(plan, served_drafts=(found,))

    async def open_models(self, context: ReplyContext) -> LocalModels | str:
        """Return the loaded models, or the reason there are none ("" if the reason need not be shown).

        If the loading options or the target changed, the models are loaded again as soon as no reply uses the old
        ones. Raises RunError when the target is a file, which nothing else can run.
        """
        settings, options, target = context.settings, context.in_effect, context.target
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
                    return _obstacle(error)
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

    async def _open(
        self, settings: PairSettings, options: Mapping[str, Any], target: ModelInfo | None
    ) -> LocalModels | str:
        from specollama.pairs.model_loading import load_options  # here, since numpy comes with it: 0.1 s at each start
        from specollama.pairs.routes.local_models import load_models

        weights = target_file(settings, self._environ, target)
        environ = store_environ(self._environ, target)
        if isinstance(weights, str):
            return weights
        if target and options.get("num_ctx") is None:
            options = {**options, "num_ctx": await context_length(target)}
        files, notices = dict[str, Path](), list[str]()
        for draft in settings.drafts:
            try:
                if file := _file(draft, environ):
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


def target_file(settings: PairSettings, environ: Mapping[str, str], target: ModelInfo | None = None) -> Path | str:
    """Path of the target's weights, or the reason not to load them ("" if the reason need not be shown).

    `target`: as its server describes it. Raises RunError if the weights exist and can't be used.
    """
    environ = store_environ(environ, target)
    file = _file(settings.target, environ, target.digest if target else "")
    if file is None:
        looked = ", ".join(str(place) for place in model_store.store_folders(environ))
        where = f"{settings.target} isn't in a model store on this machine ({looked})"
        if store := _servers_own_store(target):
            return f"local: {where}; its server keeps it in {store}, which can't be seen from here"
        return where if settings.route is Route.LOCAL else ""
    why = why_not_local() if settings.route is Route.AUTO and isinstance(settings.target, ModelRef) else ""
    return why or file


def store_environ(environ: Mapping[str, str], target: ModelInfo | None) -> Mapping[str, str]:
    """The environment in which models are looked up: with the store that the target's own server names, if it is here.

    A service often has a store that is set for it alone.
    """
    store = _servers_own_store(target)
    return {**environ, "OLLAMA_MODELS": str(store)} if store and model_store.is_visible(store) else environ


def _servers_own_store(target: ModelInfo | None) -> Path | None:
    """The store of the target's server; None if it is on another machine, or doesn't say."""
    if target is None or on_different_machines(target.server.url, THIS_MACHINE):
        return None
    return model_store.store_of_modelfile(target.show.modelfile)


def _file(model: DraftRef, environ: Mapping[str, str], digest: str = "") -> Path | None:
    if isinstance(model, FileRef):
        return model.path
    return model_store.find_weights(model.model, environ, digest) if isinstance(model, ModelRef) else None


def why_not_local() -> LocalObstacle:
    """The reason, in one line, why loading a model in process would be slow on this machine; "" if there is none."""
    try:
        offloads = offloads_to_gpu()
    except MissingPackage as error:
        return _obstacle(error)
    gpu = (platform.system(), platform.machine()) == ("Darwin", "arm64") or has_gpu_memory()
    if gpu and not offloads:
        return LocalObstacle("local: this machine has a GPU that the installed llama.cpp wasn't built for")
    return LocalObstacle()


def _obstacle(error: RunError) -> LocalObstacle:
    return (PackageMissing if isinstance(error, MissingPackage) else LocalObstacle)(f"local: {error}")


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


@dataclass(frozen=True, slots=True)
class LocalPlan(Plan):
    """Plan of one reply with a target loaded in process. `thinks`: the target may think before it answers."""

    models: LocalModels
    prompt: str
    context: ReplyContext
    thinks: bool = False
    notices: tuple[str, ...] = ()
    served_drafts: tuple[ModelInfo, ...] = ()  # draft models that run on a server
    route: Route = Route.LOCAL

    async def events(
        self, observer: RoundObserver | None = None, fair_share: Callable[[], int] | None = None
    ) -> AsyncGenerator[Event, None]:
        """Yield the reply, as soon as no other reply uses the models."""
        settings, sampling = self.context.settings, self.context.sampling
        async with self.models.reply_lock, AsyncExitStack() as stack:
            served = [
                make_served_drafter(model, self.context, THIS_MACHINE, self.models.target.vocabulary)
                for model in self.served_drafts
            ]
            shown = _TRACED if observer else _NEEDED
            decoder = self.models.make_decoder(self.prompt, sampling, settings, served, shown)
            decoder.observer = observer
            ahead = ahead_drafters(served)
            decoder.target = OverlappedTarget(decoder.target, ahead)
            drafts = self.models.drafts or self.models.drafters.lookup or served
            off = why_drafting_is_off(settings) or (None if drafts else "no draft model can be used")
            decoder.stats.reason = off or ""
            near_ties = near_tie_text(_quantisation(self)) if sampling.greedy and off is None else ""
            details = [off or f"local, lookahead {decoder.lookahead}", near_ties, *self.notices]
            yield Status(on=off is None, detail="; ".join(filter(None, details)))
            for drafter in ahead:
                await stack.enter_async_context(aclosing(drafter))
            events = await stack.enter_async_context(aclosing(decoder.events()))
            async for event in split_thinking(events, self.prompt, self.thinks):
                report_reply_end(decoder.lookahead, event)
                yield event

    def context_tokens(self, text: str) -> list[int] | None:
        return None if self.context.request.raw else self.models.encode(self.prompt + text)

    def why_busy(self, slots: SlotPool) -> str | None:
        """A file has no server that could answer in the meantime: its replies wait for each other."""
        waits = isinstance(self.context.settings.target, FileRef)
        return BUSY if self.models.reply_lock.locked() and not waits else None
