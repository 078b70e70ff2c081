"""Examine one pair: its servers, whether its models fit each other, and the expected speedup of each route."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import aclosing
from dataclasses import dataclass, replace
from pathlib import Path
from time import perf_counter

from specollama.backends.engines.detect import detect
from specollama.backends.llama_cpp.gguf_metadata import refuse_unreadable
from specollama.backends.ollama.client import OllamaServer
from specollama.backends.ollama.model_info import ModelInfo, context_length, fetch_model_info
from specollama.backends.ollama.schema import Message
from specollama.config.settings import FileRef, ModelRef, PairSettings
from specollama.errors import EndpointError, ModelMissing, RunError, SpecollamaError
from specollama.pairs.feasibility import ReplyContext, model_obstacle
from specollama.pairs.pair import Pair
from specollama.pairs.request import ChatInput
from specollama.pairs.routes.local import LocalRoute, target_file
from specollama.pairs.slots import slots_of
from specollama.spec_decode.expected_speedup import AcceptanceProfile, constant_rate, from_counts
from specollama.spec_decode.types import Route
from specollama.tools import native_server
from specollama.tools.bench.comparison import collect_reply
from specollama.tools.bench.prompts import built_in, pick_evenly
from specollama.tools.doctor.compatibility import with_compatibility
from specollama.tools.doctor.findings import LanesFinding, LocalFinding, NativeFinding, PairFindings
from specollama.tools.doctor.pair_status import pair_status, requests_of
from specollama.tools.doctor.route_forecast import ASSUMED_PROFILE, forecast_routes
from specollama.tools.doctor.servers import inspect_server
from specollama.tools.doctor.slot_benchmark import slots_or_reason

MEASURED_FOR = 30.0  # seconds of real prompts
_PROMPTS, _TOKENS = 6, 48
_DRAFTED = 4  # tokens in a draft while acceptance is measured: those that aren't sure count as well

Note = Callable[[str], None]


async def examine_pair(
    settings: PairSettings, environ: Mapping[str, str], *, measure: bool = False, note: Note = lambda what: None
) -> PairFindings:
    """Load a pair's models and time them. `measure`: also answer real prompts for half a minute.

    `note` receives each step as a short text.
    """
    found = PairFindings(
        settings.name or "",
        str(settings.target),
        ", ".join(map(str, settings.drafts)),
        asked_lanes=slots_of(settings),
        route=settings.route,
    )
    if isinstance(settings.target, FileRef):
        return await _examine_files(found, settings, environ, measure=measure, note=note)
    if settings.target.is_scoring_engine:
        return replace(found, elsewhere=str(settings.target.api))
    async with Pair(settings, environ) as pair:
        note("looking at the servers")
        found = await _with_servers(found, pair, settings)
        if (
            found.target_server
            and found.target_server.fault
            and (engine := await detect(settings.target.endpoint, environ))
        ):
            return replace(found, elsewhere=str(engine))
        if any(server and server.fault for server in (found.target_server, found.draft_server)):
            return found
        try:
            return await _examine_servers(found, pair, environ, measure=measure, note=note)
        except EndpointError as error:
            return replace(found, faults=(str(error),))


async def _examine_servers(
    found: PairFindings, pair: Pair, environ: Mapping[str, str], *, measure: bool, note: Note
) -> PairFindings:
    """Examine a pair whose servers answer. Raises EndpointError when a server fails later."""
    settings = pair.settings
    assert isinstance(settings.target, ModelRef)
    models, missing = await _fetch_models(pair, settings)
    if missing:
        return replace(found, missing=missing)
    target, draft = models[0], models[1] if len(models) > 1 else None
    in_effect = ReplyContext(settings, ChatInput([]), target).in_effect
    if (obstacle := model_obstacle(target, in_effect)) and not target.speculates_natively(in_effect):
        return replace(found, faults=(obstacle,))
    found = await _with_lanes(found, pair, target, draft, note)
    if found.faults:
        return found
    found = replace(found, target_server=await inspect_server(pair.target_server, settings.target.endpoint))
    return await _with_routes(found, settings, environ, target, measure=measure, note=note)


@dataclass(frozen=True, slots=True)
class TuningResult:
    """The findings, and for each model the seconds of a pass by its number of tokens, before and after tuning."""

    found: PairFindings
    costs: Mapping[str, tuple[Mapping[int, float], Mapping[int, float]]]


async def tune_pair(settings: PairSettings, environ: Mapping[str, str], note: Note) -> TuningResult:
    """Measure the pair again, and save the measurements for later replies."""
    note("timing passes")
    target = settings.target.model if isinstance(settings.target, ModelRef) else None
    timed = (
        await _remeasure_costs(settings, environ)
        if target is None or _opens_in_process(settings, environ, None)
        else {}
    )
    found = await examine_pair(settings, environ, measure=True, note=note)
    if isinstance(found.lanes, LanesFinding):
        note("timing rounds")
        await pair_status(settings, environ, measure=True)  # what the route auto goes by
    return TuningResult(found, timed)


async def _remeasure_costs(
    settings: PairSettings, environ: Mapping[str, str]
) -> dict[str, tuple[Mapping[int, float], Mapping[int, float]]]:
    """Seconds of the models' passes in process, before and after; empty when the models can't be opened."""
    route = LocalRoute(environ)
    try:
        opened = await route.open_models(ReplyContext(replace(settings, route=Route.AUTO), ChatInput([])))
        if isinstance(opened, str):
            return {}
        models = (opened.target, *opened.drafts)
        before = [model.costs.passes for model in models]
        await opened.remeasure()
        names = [str(settings.target), *(model.name for model in opened.drafts)]
        return {name: (old, model.costs.passes) for name, old, model in zip(names, before, models, strict=True)}
    except RunError:
        return {}
    finally:
        await route.close()


async def _examine_files(
    found: PairFindings, settings: PairSettings, environ: Mapping[str, str], *, measure: bool, note: Note
) -> PairFindings:
    """Examine a pair of files, which needs no server."""
    for model in (settings.target, *settings.drafts):
        if isinstance(model, FileRef):
            try:
                refuse_unreadable(model.path)
            except RunError as error:
                return replace(found, faults=(str(error),))
    found = replace(found, lanes="no server has the target")
    found = await _with_routes(found, settings, environ, None, measure=measure, note=note)
    return replace(found, faults=(found.local,)) if isinstance(found.local, str) else found


async def _with_servers(found: PairFindings, pair: Pair, settings: PairSettings) -> PairFindings:
    assert isinstance(settings.target, ModelRef)
    target = await inspect_server(pair.target_server, settings.target.endpoint)
    if settings.draft is None or pair.draft_server is None:
        return replace(found, target_server=target)
    if settings.draft.endpoint.url == settings.target.endpoint.url:
        return replace(found, target_server=target, draft_server=target)
    return replace(
        found, target_server=target, draft_server=await inspect_server(pair.draft_server, settings.draft.endpoint)
    )


async def _fetch_models(pair: Pair, settings: PairSettings) -> tuple[list[ModelInfo], tuple[str, ...]]:
    """The target and, if a server has it, the draft; and the names of missing models."""
    wanted = [(pair.target_server, settings.target.model)]
    if settings.draft and pair.draft_server:
        wanted.append((pair.draft_server, settings.draft.model))
    found, missing = list[ModelInfo](), list[str]()
    for server, name in wanted:
        try:
            found.append(await fetch_model_info(server, name))
        except ModelMissing:
            missing.append(name)
    return found, tuple(missing)


async def _with_lanes(
    found: PairFindings, pair: Pair, target: ModelInfo, draft: ModelInfo | None, note: Note
) -> PairFindings:
    """Add how the models fit, and how the target's server processes several requests at once."""
    if draft is None:
        alone = "prompt lookup drafts alone: `specollama pairs --measure` times the rows of its drafts"
        return replace(found, lanes=alone if pair.settings.uses_lookup_alone else "no draft model is served")
    note("loading both models, and comparing them")
    found = await with_compatibility(found, pair, target, draft)
    if found.faults:
        return found
    note("timing requests")
    ours, theirs = requests_of(pair.settings, target, target), requests_of(pair.settings, draft, target)
    lanes = await slots_or_reason(ours, target, theirs, draft)
    lengths = await context_length(target), await context_length(draft)
    return replace(found, lanes=lanes, context_lengths=lengths)


async def _with_routes(
    found: PairFindings,
    settings: PairSettings,
    environ: Mapping[str, str],
    target: ModelInfo | None,
    *,
    measure: bool,
    note: Note,
) -> PairFindings:
    """Add the costs of passes in process, the acceptance rate, and the forecast of each route."""
    measured: AcceptanceProfile | str = ""
    if measure:
        note("asking real prompts")
        measured = await _acceptance_or_reason(settings, environ, target)
    note("opening the models in process")
    local, kept = await local_finding(settings, environ, target)
    acceptance = kept or (measured if isinstance(measured, AcceptanceProfile) else ASSUMED_PROFILE)
    native = await _native_finding(found, settings, environ) if target else None
    routes = forecast_routes(acceptance, local, found.lanes, native, found.asked_lanes)
    unasked = measured if isinstance(measured, str) else ""
    return replace(found, local=local, native=native, acceptance=acceptance, unasked=unasked, routes=routes)


async def local_finding(
    settings: PairSettings, environ: Mapping[str, str], target: ModelInfo | None
) -> tuple[LocalFinding | str, AcceptanceProfile | None]:
    """Costs of the pair's passes in process, and its draft's acceptance so far; or why the pair can't be opened."""
    route = LocalRoute(environ)
    try:
        opened = await route.open_models(ReplyContext(replace(settings, route=Route.AUTO), ChatInput([]), target))
    except SpecollamaError as error:
        return str(error), None
    if isinstance(opened, str):
        return opened, None
    try:
        draft = opened.drafts[0] if opened.drafts else None
        step = draft.costs.passes[1] if draft else None
        whole = opened.drafters.profile.models.get(draft.original_key) if draft else None
        known = [
            fared for key, fared in opened.drafters.profile.drafters.items() if draft and key.endswith(f" {draft.name}")
        ]
        seen = max(known, key=lambda fared: sum(fared.trials), default=None)
        found = LocalFinding(str(settings.target), opened.target.costs.passes, step, whole.passes[1] if whole else step)
        return found, from_counts(seen.hits, seen.trials) if seen else None
    finally:
        await route.close()


async def _acceptance_or_reason(
    settings: PairSettings, environ: Mapping[str, str], target: ModelInfo | None
) -> AcceptanceProfile | str:
    """The acceptance rate on the built-in prompts, or one line that says why it isn't known."""
    if not settings.drafts:
        return "the pair has no draft"
    try:
        return await _measure_acceptance(settings, environ, target)
    except SpecollamaError as error:
        return str(error)


async def _measure_acceptance(
    settings: PairSettings, environ: Mapping[str, str], target: ModelInfo | None
) -> AcceptanceProfile | str:
    """Measured in process if possible: there the draft model's probabilities are known, and they are saved."""
    route = Route.LOCAL if _opens_in_process(settings, environ, target) else Route.GREEDY
    tested = accepted = 0
    why, began = "", perf_counter()
    async with Pair(settings.with_overrides(route=route, lookahead=_DRAFTED), environ) as pair:
        for prompt in pick_evenly(built_in(), _PROMPTS):
            if perf_counter() - began > MEASURED_FOR:
                break
            options = {"temperature": 0, "num_predict": _TOKENS}
            asked = ChatInput([Message(role="user", content=prompt.turns[0])], options)
            async with aclosing(pair.reply(asked)) as events:
                stats = (await collect_reply(events)).stats
            tested, accepted, why = tested + stats.tested, accepted + stats.accepted, stats.reason or why
    return constant_rate(accepted / tested, tested) if tested else "; ".join(filter(None, ["nothing was drafted", why]))


def _opens_in_process(settings: PairSettings, environ: Mapping[str, str], target: ModelInfo | None) -> bool:
    try:
        found = target_file(replace(settings, route=Route.AUTO), environ, target)
    except RunError:
        return False
    return isinstance(found, Path)


async def _native_finding(found: PairFindings, settings: PairSettings, environ: Mapping[str, str]) -> NativeFinding:
    """Whether the pair's native server speculates, or one can be set up."""
    url = settings.native.url
    if isinstance(found.lanes, LanesFinding) and found.lanes.itself:
        return NativeFinding(found.target_server.url if found.target_server else url, running=True)
    async with OllamaServer(url, **settings.native.connection_settings(environ)) as server:
        try:
            shown = await native_server.observe_reply(server, settings.target.model)
        except EndpointError:
            shown = None
    if shown and shown.speculates:
        return NativeFinding(url, running=True)
    return NativeFinding(url, obstacle=_native_obstacle(found, settings, environ))


def _native_obstacle(found: PairFindings, settings: PairSettings, environ: Mapping[str, str]) -> str:
    server = found.target_server
    if server and server.engine != "llama-server":
        return f"Ollama {server.version}'s engine can't draft with another model: 0.30 is the first"
    try:
        native_server.check_draft_compatibility(native_server.make_setup(settings, environ))
    except SpecollamaError as error:
        return str(error)
    return ""
