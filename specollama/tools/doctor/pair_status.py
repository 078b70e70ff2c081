"""Status of a configured pair, found without generating a reply."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from specollama.backends.llama_cpp.gguf_metadata import refuse_unreadable
from specollama.backends.ollama.client import OllamaServer
from specollama.backends.ollama.model_info import ModelInfo, fetch_model_info
from specollama.backends.ollama.request_bodies import RequestTemplate
from specollama.backends.ollama.slot_probe import SlotProbe, cache_file, load, probe_pair
from specollama.config.settings import FileRef, ModelRef, PairSettings
from specollama.errors import EndpointError, RunError, Unreachable
from specollama.pairs.feasibility import ReplyContext, why_drafting_is_off, why_not_lanes, why_not_split, why_plain
from specollama.pairs.pair import Pair
from specollama.pairs.request import ChatInput
from specollama.pairs.routes.local import target_file
from specollama.pairs.routes.scoring import ScoringRoute
from specollama.pairs.routes.scoring_feasibility import why_not_faster
from specollama.pairs.served_drafters import request_template
from specollama.pairs.slots import DEFAULT_SLOTS
from specollama.pairs.tokenizers import TokenizerMatch
from specollama.spec_decode.types import Route, SamplingOptions

_GREEDY = SamplingOptions(temperature=0)


@dataclass(frozen=True, slots=True)
class ModelFinding:
    """One model of a pair. `server`: the name of the server's software; `engine`: the engine that runs the model there.

    `fault`: why it can't be used; "" when it can.
    """

    model: str
    url: str
    reachable: bool
    there: bool
    version: str = ""
    engine: str = ""
    fault: str = ""
    server: str = "Ollama"


@dataclass(frozen=True, slots=True)
class PairFinding:
    """One pair. `slots`: requests that the target was seen to work on at once; None before it was measured, as is
    `measured`, whose times are in seconds.

    `tokenizers`: "same", where they differ, or why that isn't known. `route` is the one that a reply would take, for
    `reason`.
    """

    name: str
    target: ModelFinding
    draft: ModelFinding | None
    slots: int | None
    tokenizers: str
    route: str
    reason: str
    measured: dict[str, Any] | None = None

    def as_object(self) -> dict[str, Any]:
        return asdict(self)


async def pair_status(settings: PairSettings, environ: Mapping[str, str], *, measure: bool = False) -> PairFinding:
    """Examine a pair. With `measure` its models are loaded and timed, even if an earlier measurement is saved."""
    name = settings.name or ""
    if isinstance(settings.target, FileRef):
        return _of_files(name, settings, settings.target)
    async with Pair(settings, environ) as pair:
        if settings.target.is_scoring_engine and (scoring := await pair.scoring_route()):
            return await _of_engine(name, settings, pair, scoring, measure=measure)
        target, known_target = await _look(pair.target_server, settings.target.model)
        if known_target is None and target.reachable and (scoring := await pair.scoring_route()):
            return await _of_engine(name, settings, pair, scoring, measure=measure)
        local = _local(settings, environ, known_target)
        if settings.draft is None and not settings.uses_lookup_alone:
            route, reason = ("none", target.fault) if target.fault else local or (str(Route.PLAIN), "no draft model")
            return PairFinding(name, target, None, None, "no draft model", route, reason)
        draft, known_draft = await _drafting(settings, pair.draft_server)
        if known_target is None or (draft and known_draft is None):
            return _unusable(name, target, draft, target.fault or (draft.fault if draft else ""))
        tokenizers = await pair.tokenizers(known_target, known_draft)
        ours = requests_of(settings, known_target, known_target)
        probe = load(cache_file(ours, known_target, known_draft))
        if measure:
            theirs = requests_of(settings, known_draft, known_target) if known_draft else None
            probe = await probe_pair(ours, known_target, theirs, known_draft, patiently=True)
        route, reason = _route(settings, known_target, tokenizers, probe, local)
        timed = probe if isinstance(probe, SlotProbe) else None
        return PairFinding(
            name,
            target,
            draft,
            slots=timed.slots if timed else None,
            tokenizers=tokenizers_text(tokenizers) if draft else "no draft model",
            route=route,
            reason=reason,
            measured=timed.model_dump() if timed else None,
        )


def tokenizers_text(tokenizers: TokenizerMatch) -> str:
    """The comparison of the tokenizers as text."""
    if tokenizers.difference:
        return f"different, drafts are put into the target's tokens: {tokenizers.difference}"
    return "same" if tokenizers.same else tokenizers.why_not_exact


def _of_files(name: str, settings: PairSettings, target: FileRef) -> PairFinding:
    """Status of a pair of files, which needs no server."""
    found = [_file(model.path) for model in (target, *settings.drafts) if isinstance(model, FileRef)]
    fault = next((each.fault for each in found if each.fault), "")
    route, reason = ("none", fault) if fault else ("local", f"opened in process: {target.path}")
    off = why_drafting_is_off(settings)
    return PairFinding(
        name,
        found[0],
        found[1] if len(found) > 1 else None,
        slots=None,
        tokenizers="compared when they are opened",
        route=str(Route.PLAIN) if off and not fault else route,
        reason=off or reason,
    )


async def _of_engine(
    name: str, settings: PairSettings, pair: Pair, scoring: ScoringRoute, *, measure: bool
) -> PairFinding:
    """A pair whose target is on an engine that isn't Ollama; nothing is opened for drafting but with `measure`."""
    target = await _engine_status(settings, scoring)
    draft: ModelFinding | None = next((_file(each.path) for each in settings.drafts if isinstance(each, FileRef)), None)
    if settings.draft is not None and pair.draft_server is not None:
        draft, _ = await _look(pair.draft_server, settings.draft.model)
    fault = target.fault or (draft.fault if draft else "")
    if fault:
        return _unusable(name, target, draft, fault)
    route, reason = str(Route.SCORING), f"all places of a draft in one request to {target.engine}"
    if off := why_drafting_is_off(settings):
        route, reason = str(Route.PLAIN), off
    elif measure:
        costs = await (opened := await scoring.open_models(settings)).profile(_GREEDY)
        if why := why_not_faster(costs, opened.engine.capabilities, opened.facts, 0, _GREEDY):
            route, reason = str(Route.PLAIN), why
    return PairFinding(name, target, draft, None, "compared when they are opened", route, reason)


async def _engine_status(settings: PairSettings, scoring: ScoringRoute) -> ModelFinding:
    assert isinstance(settings.target, ModelRef)
    model, url = settings.target.model, settings.target.endpoint.url
    try:
        kind, facts = await scoring.engine_info(settings)
    except EndpointError as error:
        reachable = not isinstance(error, Unreachable)
        return ModelFinding(model, url, reachable, there=False, fault=str(error))
    return ModelFinding(model, url, True, True, facts.version, kind, server=kind)


def _file(path: Path) -> ModelFinding:
    try:
        refuse_unreadable(path)
    except RunError as error:
        return ModelFinding(path.name, str(path), reachable=True, there=False, fault=str(error))
    return ModelFinding(path.name, str(path), reachable=True, there=True, engine="in process")


def _local(settings: PairSettings, environ: Mapping[str, str], target: ModelInfo | None) -> tuple[str, str] | None:
    """The route local and the path of the weights; None when another route is taken."""
    if target is None or settings.route not in (Route.AUTO, Route.LOCAL):
        return None
    try:
        file = target_file(settings, environ, target.digest)
    except RunError:
        return None
    return (str(Route.LOCAL), f"opened in process: {file}") if isinstance(file, Path) else None


def _unusable(name: str, target: ModelFinding, draft: ModelFinding | None, reason: str) -> PairFinding:
    """Status of a pair with a missing model: without its draft it runs plain, without its target it doesn't run."""
    route = "none" if target.fault else str(Route.PLAIN)
    return PairFinding(name, target, draft, slots=None, tokenizers="not known", route=route, reason=reason)


async def _drafting(
    settings: PairSettings, server: OllamaServer | None
) -> tuple[ModelFinding | None, ModelInfo | None]:
    """The served draft model; nothing where prompt lookup drafts alone."""
    if settings.draft is None or server is None:
        return None, None
    return await _look(server, settings.draft.model)


async def _look(server: OllamaServer, model: str) -> tuple[ModelFinding, ModelInfo | None]:
    try:
        known = await fetch_model_info(server, model)
    except EndpointError as error:
        reachable = not isinstance(error, Unreachable)
        return ModelFinding(model, server.url, reachable, there=False, fault=str(error)), None
    version = ".".join(str(number) for number in known.version)
    return ModelFinding(model, server.url, True, True, version, known.engine), known


def requests_of(settings: PairSettings, model: ModelInfo, target: ModelInfo) -> RequestTemplate:
    """Default requests to a model of the pair, with the target's sampling options."""
    return request_template(model, ReplyContext(settings, ChatInput([]), target))


def _route(
    settings: PairSettings,
    target: ModelInfo,
    tokenizers: TokenizerMatch,
    probe: SlotProbe | str | None,
    local: tuple[str, str] | None,
) -> tuple[str, str]:
    """The route that a short prompt would take, and why."""
    context = ReplyContext(settings, ChatInput([]), target)
    obstacle = why_plain(context, target) or why_not_split(target, tokenizers.target)
    if obstacle:
        return str(Route.PLAIN), obstacle
    if local:
        return local
    if settings.route is not Route.AUTO:
        return str(settings.route), "set by the configuration"
    if probe is None:
        return str(Route.AUTO), "not measured yet: the first reply does it, or --measure"
    if isinstance(probe, str):
        return str(Route.PLAIN), probe
    if obstacle := why_not_lanes(probe, 0, settings.lanes or DEFAULT_SLOTS):
        return str(Route.PLAIN), obstacle
    return str(Route.LANES), f"about {probe.speedup(0.8):.1f}x at 80 % acceptance, as measured"
