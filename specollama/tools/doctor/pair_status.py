"""Status of a configured pair, found without generating a reply."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from specollama.backends.llama_cpp.gguf_metadata import refuse_unreadable
from specollama.backends.ollama.client import OllamaServer
from specollama.backends.ollama.model_info import ModelInfo, fetch_model_info
from specollama.backends.ollama.request_bodies import RequestTemplate
from specollama.backends.ollama.slot_probe import SlotProbe, cache_file, load, probe_pair
from specollama.config.settings import FileRef, ModelRef, PairSettings
from specollama.errors import EndpointError, RunError, Unreachable, UnsupportedPair
from specollama.pairs.feasibility import ReplyContext, why_drafting_is_off
from specollama.pairs.pair import Pair
from specollama.pairs.request import ChatInput
from specollama.pairs.routes.local import target_file
from specollama.pairs.routes.scoring import ScoringRoute
from specollama.pairs.routes.scoring_feasibility import why_not_faster
from specollama.pairs.routing import RouteFacts, ServedPrompt, choose_route
from specollama.pairs.served_drafters import request_template
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
        draft, known_draft = await _drafting(settings, pair.draft_server)
        drafts = settings.draft is not None or settings.uses_lookup_alone
        if known_target is None or (draft and known_draft is None):
            found = _unusable(name, target, draft, target.fault or (draft.fault if draft else ""))
            return found if drafts else replace(found, tokenizers="no draft model")
        facts = RouteFacts(
            ReplyContext(settings, ChatInput([]), known_target),
            draft=known_draft or "no draft model",
            local=_local(settings, environ, known_target),
            prompt=ServedPrompt("", 0),  # the route that a short prompt would take
        )
        if not drafts:
            choice = _choice(facts)
            return PairFinding(name, target, None, None, "no draft model", choice.route, choice.reason)
        tokenizers = await pair.tokenizers(known_target, known_draft)
        target_requests = requests_of(settings, known_target, known_target)
        probe = load(cache_file(target_requests, known_target, known_draft))
        if measure:
            draft_requests = requests_of(settings, known_draft, known_target) if known_draft else None
            probe = await probe_pair(target_requests, known_target, draft_requests, known_draft, patiently=True)
        choice = _choice(replace(facts, tokenizers=tokenizers, probe=probe))
        timed = probe if isinstance(probe, SlotProbe) else None
        return PairFinding(
            name,
            target,
            draft,
            slots=timed.slots if timed else None,
            tokenizers=tokenizers_text(tokenizers) if draft else "no draft model",
            route=choice.route,
            reason=choice.reason,
            measured=timed.model_dump() if timed else None,
        )


@dataclass(frozen=True, slots=True)
class _Choice:
    """The route that a reply would take, and why; "none" if the pair can't run as it is configured."""

    route: str
    reason: str


def _choice(facts: RouteFacts) -> _Choice:
    try:
        choice = choose_route(facts)
    except UnsupportedPair as error:
        return _Choice("none", str(error))
    return _Choice(str(choice.route), choice.reason)


def tokenizers_text(tokenizers: TokenizerMatch) -> str:
    """The comparison of the tokenizers as text."""
    if tokenizers.difference:
        return f"different, drafts are put into the target's tokens: {tokenizers.difference}"
    return "same" if tokenizers.same else tokenizers.why_not_exact


def _of_files(name: str, settings: PairSettings, target: FileRef) -> PairFinding:
    """Status of a pair of files, which needs no server."""
    found = [_file(model.path) for model in (target, *settings.drafts) if isinstance(model, FileRef)]
    fault = next((each.fault for each in found if each.fault), "")
    choice = _Choice("none", fault) if fault else _choice(RouteFacts(ReplyContext(settings, ChatInput([]))))
    return PairFinding(
        name,
        found[0],
        found[1] if len(found) > 1 else None,
        slots=None,
        tokenizers="compared when they are opened",
        route=choice.route,
        reason=choice.reason,
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
    obstacle = ""
    if measure and not why_drafting_is_off(settings):
        costs = await (models := await scoring.open_models(settings)).profile(_GREEDY)
        obstacle = why_not_faster(costs, models.engine.capabilities, models.facts, 0, _GREEDY)
    facts = RouteFacts(ReplyContext(settings, ChatInput([])), engine=scoring.api(settings), engine_obstacle=obstacle)
    choice = _choice(facts)
    return PairFinding(name, target, draft, None, "compared when they are opened", choice.route, choice.reason)


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


def _local(settings: PairSettings, environ: Mapping[str, str], target: ModelInfo) -> Path | str:
    """The file of the target's weights; or why it isn't opened in process ("" if that need not be shown)."""
    try:
        return target_file(settings, environ, target)
    except RunError as error:
        return f"local: {error}"


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
