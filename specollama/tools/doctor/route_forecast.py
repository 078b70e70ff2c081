"""Forecast the speedup of each route of a pair from its measurements. Pure."""

from __future__ import annotations

from specollama.spec_decode.cost_curve import CostCurve
from specollama.spec_decode.expected_speedup import AcceptanceProfile, best_round, constant_rate, expected_speedup
from specollama.spec_decode.types import Route
from specollama.tools.doctor.findings import LanesFinding, LocalFinding, NativeFinding, RouteFinding
from specollama.tools.native_server import N_MAX, P_MIN

ASSUMED_ACCEPTANCE = constant_rate(0.8)
"""Acceptance rate assumed for a draft of the target's family before any measurement."""


def forecast_routes(
    acceptance: AcceptanceProfile,
    local: LocalFinding | str,
    lanes: LanesFinding | str,
    native: NativeFinding | None,
    asked_lanes: int,
) -> tuple[RouteFinding, ...]:
    """All routes. `asked_lanes`: rows that may be asked at once."""
    return (
        _local(acceptance, local),
        _native(acceptance, local, native),
        _lanes(acceptance, lanes, asked_lanes),
        RouteFinding(Route.GREEDY, None, "never faster: it measures how well a draft fits"),
        RouteFinding(Route.PLAIN, 1.0),
    )


def _local(acceptance: AcceptanceProfile, local: LocalFinding | str) -> RouteFinding:
    if isinstance(local, str):
        return RouteFinding(Route.LOCAL, None, local or "the target isn't in a model store on this machine")
    if local.draft_step is None:
        return RouteFinding(Route.LOCAL, None, "by prompt lookup alone: it gains where what was said comes again")
    best = best_round(CostCurve(dict(local.passes)), local.draft_step, acceptance)
    return RouteFinding(Route.LOCAL, best.speedup, "", best.lookahead, best.threshold)


def _native(acceptance: AcceptanceProfile, local: LocalFinding | str, native: NativeFinding | None) -> RouteFinding:
    if native is None or native.obstacle:
        return RouteFinding(Route.NATIVE, None, native.obstacle if native else "not looked at")
    if isinstance(local, str) or local.file_step is None:
        return RouteFinding(Route.NATIVE, None, "what passes cost isn't known here: measure it with `specollama bench`")
    gained = expected_speedup(CostCurve(dict(local.passes)), local.file_step, acceptance, N_MAX, P_MIN)
    return RouteFinding(Route.NATIVE, gained, "", N_MAX, P_MIN)


def _lanes(acceptance: AcceptanceProfile, lanes: LanesFinding | str, asked: int) -> RouteFinding:
    """The best lookahead, also when it is slower than plain, so that the slowdown can be shown."""
    if isinstance(lanes, str):
        return RouteFinding(Route.LANES, None, lanes)
    if obstacle := why_not_rows(lanes):
        return RouteFinding(Route.LANES, None, obstacle)
    curve = CostCurve({1: lanes.step, **lanes.rows})
    gained = {
        length: expected_speedup(
            curve, lanes.draft_step, constant_rate(acceptance.rate), length, overhead=lanes.draft_overhead
        )
        for length in range(1, max(2, asked))
    }
    best = max(gained, key=gained.__getitem__)
    return RouteFinding(Route.LANES, gained[best], "", best)


def why_not_rows(lanes: LanesFinding) -> str:
    """Why the server can't process rows; "" when it can."""
    if not lanes.logprobs:
        return "the server gives no log-probabilities"
    if lanes.itself:
        return "the server drafts by itself, and tells nothing of those tokens"
    return "" if lanes.resident else "draft and target evict each other"
