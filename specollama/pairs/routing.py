"""Chooses the route of a reply from what is known. Pure: for replies, for `specollama pairs` and for doctor alike.

A choice may need a fact that is expensive to find out. It then names the fact, and is made again with it.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import Protocol

from specollama.backends.engines.detect import CLIENTS
from specollama.backends.ollama.model_info import ModelInfo
from specollama.backends.ollama.slot_probe import SlotProbe
from specollama.config.settings import FileRef, PairSettings
from specollama.errors import UnsupportedPair
from specollama.pairs.assumptions import ASSUMED_ACCEPTANCE
from specollama.pairs.decoding import choose_acceptance_method
from specollama.pairs.feasibility import (
    ReplyContext,
    may_double_bos,
    why_context_is_full,
    why_drafting_is_off,
    why_not_in_process,
    why_not_lanes,
    why_not_rejection,
    why_not_split,
    why_plain,
)
from specollama.pairs.routes.base import Plan
from specollama.pairs.slots import slots_of
from specollama.pairs.tokenizers import TokenizerMatch
from specollama.spec_decode.types import AcceptanceMethod, Route, ServerApi


class MissingFact(StrEnum):
    """A fact that the choice needs next."""

    TARGET = "target"  # its server's description
    LOCAL = "local"  # whether the target can be opened in process
    TOKENIZERS = "tokenizers"
    PROMPT = "prompt"
    PROBE = "probe"  # how the target's server processes several requests at once


@dataclass(frozen=True, slots=True)
class ServedPrompt:
    """A prompt for the target's server. `tokens`: its length; `context_length`: in tokens, None if unknown."""

    text: str
    tokens: int
    context_length: int | None = None


@dataclass(frozen=True, slots=True)
class RouteFacts:
    """What is known about a reply. None: not known yet. A text in the place of a fact says why there is none.

    `context.target`: the target as its Ollama server describes it. `engine`: what serves the target if it isn't an
    Ollama; `engine_obstacle`: why its rounds don't pay, as measured. `local`: the plan, or the file, of the target in
    process.
    """

    context: ReplyContext
    engine: ServerApi | None = None
    engine_obstacle: str = ""
    draft: ModelInfo | str = "no draft model"
    local: Plan | Path | str | None = None
    tokenizers: TokenizerMatch | None = None
    prompt: ServedPrompt | str | None = None
    probe: SlotProbe | str | None = None

    @property
    def draft_model(self) -> ModelInfo | None:
        """The draft model on a server, if there is one."""
        return None if isinstance(self.draft, str) else self.draft


@dataclass(frozen=True, slots=True)
class RouteChoice:
    """The chosen route and the reason. `missing`: the fact that the choice needs; `route` is then `auto`.

    `answered_by`: the route whose models answer. It differs from `route` where the target has no Ollama server: its
    plain replies come from the models of its own route.
    """

    route: Route
    reason: str
    missing: MissingFact | None = None
    answered_by: Route | None = None

    @property
    def planned_by(self) -> Route:
        """The route that plans the reply."""
        return self.answered_by or self.route


class ReplyRoute(Protocol):
    """A route, opened once for all replies of a pair."""

    async def plan(self, facts: RouteFacts) -> Plan:
        """Plan a reply for which this route was chosen. Raises NotSpeculated, UnsupportedPair and RunError."""
        ...

    async def close(self) -> None:
        """Close models and connections."""
        return  # a route that holds none open has nothing to close


_FORCED = "set by the configuration"


def choose_route(facts: RouteFacts) -> RouteChoice:
    """The route of a reply, or plain with the reason, or the fact that is missing.

    Raises UnsupportedPair if the settings force a route or an acceptance method that can't be lossless.
    """
    settings = facts.context.settings
    if isinstance(settings.target, FileRef):
        return _own_route(settings, Route.LOCAL, f"opened in process: {settings.target.path}")
    if settings.route is Route.NATIVE:
        return RouteChoice(Route.NATIVE, _FORCED)
    if facts.engine:
        reason = f"all places of a draft in one request to {CLIENTS[facts.engine].kind.name}"
        return _own_route(settings, Route.SCORING, reason, facts.engine_obstacle)
    if facts.context.target is None:
        if facts.local is not None and not isinstance(facts.local, str):
            return RouteChoice(Route.LOCAL, "opened in process: the target's server can't be reached")
        return RouteChoice(Route.AUTO, "the target isn't known yet", MissingFact.TARGET)
    if settings.route is Route.SCORING:
        raise UnsupportedPair("route scoring is for other engines: Ollama's API can't score given tokens")
    return _on_ollama(facts, facts.context.target)


def _own_route(settings: PairSettings, route: Route, reason: str, obstacle: str = "") -> RouteChoice:
    """The only route of a target that isn't on an Ollama. `obstacle`: why drafting doesn't pay."""
    if why := why_drafting_is_off(settings) or obstacle:
        return RouteChoice(Route.PLAIN, why, answered_by=route)
    return RouteChoice(route, reason)


def _on_ollama(facts: RouteFacts, target: ModelInfo) -> RouteChoice:
    settings = facts.context.settings
    obstacle = why_plain(facts.context, target)
    if not obstacle and facts.tokenizers:
        obstacle = why_not_split(target, facts.tokenizers.target)
    if obstacle:
        return RouteChoice(Route.PLAIN, obstacle)
    local = _in_process(facts, target)
    if local.route is not Route.PLAIN or settings.route is Route.LOCAL:
        return local
    choice = _by_requests(facts, target)
    if choice.route is Route.PLAIN and local.reason and local.reason != choice.reason:
        return RouteChoice(Route.PLAIN, f"{choice.reason}; {local.reason}")
    return choice


def _in_process(facts: RouteFacts, target: ModelInfo) -> RouteChoice:
    """Route local, or plain with the reason ("" if the reason need not be shown)."""
    if facts.context.settings.route not in (Route.AUTO, Route.LOCAL):
        return RouteChoice(Route.PLAIN, "")
    if obstacle := why_not_in_process(facts.context, target):
        return RouteChoice(Route.PLAIN, obstacle)
    if facts.local is None:
        return RouteChoice(Route.AUTO, "not opened in process yet", MissingFact.LOCAL)
    if isinstance(facts.local, str):
        return RouteChoice(Route.PLAIN, facts.local)
    return RouteChoice(
        Route.LOCAL, f"opened in process: {facts.local if isinstance(facts.local, Path) else target.name}"
    )


def _by_requests(facts: RouteFacts, target: ModelInfo) -> RouteChoice:
    """Route lanes or greedy, which ask the target's server for rows; or plain with the reason."""
    settings, tokenizers, prompt = facts.context.settings, facts.tokenizers, facts.prompt
    if isinstance(facts.draft, str) and not settings.uses_lookup_alone:
        return RouteChoice(Route.PLAIN, facts.draft)
    if tokenizers is None:
        return RouteChoice(Route.AUTO, "the tokenizers aren't known yet", MissingFact.TOKENIZERS)
    if prompt is None:
        return RouteChoice(Route.AUTO, "the prompt isn't known yet", MissingFact.PROMPT)
    if isinstance(prompt, str):
        return RouteChoice(Route.PLAIN, prompt)
    if tokenizers.target is None and may_double_bos(prompt.text, target):
        why = f"the begin marker may come twice, which can't be told without a vocabulary: {tokenizers.why_not_exact}"
        return RouteChoice(Route.PLAIN, why)
    acceptance_method(facts.context, target, facts.draft_model, tokenizers)  # raises UnsupportedPair
    if tokenizers.target and (obstacle := why_context_is_full(prompt.tokens, prompt.context_length)):
        return RouteChoice(Route.PLAIN, obstacle)
    if settings.route is not Route.AUTO:
        return RouteChoice(settings.route, _FORCED)
    return _by_probe(facts.probe, prompt, slots_of(settings))


def _by_probe(probe: SlotProbe | str | None, prompt: ServedPrompt, slots: int) -> RouteChoice:
    """Route lanes if it pays, as measured."""
    if probe is None:
        why = "not measured yet: the first reply does it, or --measure"
        return RouteChoice(Route.AUTO, why, MissingFact.PROBE)
    if isinstance(probe, str):
        return RouteChoice(Route.PLAIN, probe)
    if obstacle := why_not_lanes(probe, prompt.tokens, slots):
        return RouteChoice(Route.PLAIN, obstacle)
    gain = f"about {probe.speedup(ASSUMED_ACCEPTANCE):.1f}x at {ASSUMED_ACCEPTANCE:.0%} acceptance, as measured"
    return RouteChoice(Route.LANES, gain.replace("%", " %"))


def acceptance_method(
    context: ReplyContext, target: ModelInfo, draft: ModelInfo | None, tokenizers: TokenizerMatch
) -> AcceptanceMethod:
    """The acceptance method on routes lanes and greedy: rejection sampling where it is exact, else match.

    Raises UnsupportedPair if rejection sampling was requested and can't be exact.
    """
    return choose_acceptance_method(
        context.settings.rule,
        context.sampling,
        why_not_rejection(context.sampling, target, draft, tokenizers),
        preferred=AcceptanceMethod.REJECTION,
    )
