"""How a reply is decoded, whatever its route: acceptance method, lookahead, and when drafting stops. Pure."""

from __future__ import annotations

from specollama.config.settings import PairSettings
from specollama.errors import UnsupportedPair
from specollama.pairs.slots import DEFAULT_SLOTS
from specollama.spec_decode.lookahead import (
    AdaptiveLookahead,
    FixedLookahead,
    Lookahead,
    ScheduledLookahead,
    SpeculationMonitor,
)
from specollama.spec_decode.planner import Planner
from specollama.spec_decode.types import AcceptanceMethod, Route, SamplingOptions


def choose_acceptance_method(
    requested: AcceptanceMethod,
    sampling: SamplingOptions,
    why_not_rejection: str | None,
    *,
    preferred: AcceptanceMethod = AcceptanceMethod.MATCH,
) -> AcceptanceMethod:
    """The acceptance method of a reply: greedy at temperature 0, else the requested or the preferred one.

    `why_not_rejection`: why rejection sampling wouldn't be lossless; None if it would be. Match takes its place then.
    Raises UnsupportedPair if rejection was requested nevertheless.
    """
    if sampling.greedy:
        return AcceptanceMethod.GREEDY
    if requested is AcceptanceMethod.REJECTION and why_not_rejection:
        raise UnsupportedPair(f"rule rejection can't be kept lossless here: {why_not_rejection}; use `match` or `auto`")
    if why_not_rejection:
        return AcceptanceMethod.MATCH
    return requested if requested in (AcceptanceMethod.MATCH, AcceptanceMethod.REJECTION) else preferred


def lookahead_for(
    settings: PairSettings, *, limit: int | None = None, planner: Planner | None = None, can_draft: bool = True
) -> Lookahead:
    """The lookahead of a reply.

    `limit`: tokens that a round can verify at most; None: not limited by the server. `planner`: decides the length if
    the settings leave it open; None: the length adapts to what was accepted. `can_draft`: there is a drafter.
    """
    if settings.route is Route.PLAIN or settings.lookahead == 0 or not can_draft:
        return FixedLookahead(0)
    if settings.lookahead == "auto":
        return planner or AdaptiveLookahead(max_tokens=max(1, DEFAULT_SLOTS - 1 if limit is None else limit))
    lengths = (settings.lookahead,) if isinstance(settings.lookahead, int) else settings.lookahead
    if limit is not None:
        lengths = tuple(min(length, max(1, limit)) for length in lengths)
    if planner is None:
        return ScheduledLookahead(lengths)
    planner.fixed_lengths = tuple(min(length, planner.draft_limit) for length in lengths)
    return planner


def monitor_for(
    settings: PairSettings, sampling: SamplingOptions, plain_seconds: float | None
) -> SpeculationMonitor | None:
    """Monitor that stops slow speculation; None if the lookahead is forced, or if a seed must reproduce the reply.

    `plain_seconds`: seconds of a plain decode step of the target; None: the monitor checks the acceptance rate only.
    """
    if settings.lookahead != "auto" or (sampling.seed is not None and not sampling.greedy):
        return None
    return SpeculationMonitor(plain_seconds)
