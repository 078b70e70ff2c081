"""Forecast the speedup of each route of a pair from its measurements. Pure."""

from __future__ import annotations

from specollama.pairs.assumptions import ASSUMED_ACCEPTANCE
from specollama.pairs.feasibility import why_no_rows
from specollama.spec_decode.cost_curve import CostCurve
from specollama.spec_decode.expected_speedup import AcceptanceProfile, best_round, constant_rate, expected_speedup
from specollama.spec_decode.types import Route
from specollama.tools.doctor.findings import LanesFinding, LocalFinding, NativeFinding, RouteFinding
from specollama.tools.native_server import N_MAX, P_MIN

ASSUMED_PROFILE = constant_rate(ASSUMED_ACCEPTANCE)
"""Acceptance rate assumed for a draft of the target's family before any measurement."""


def forecast_routes(
    acceptance: AcceptanceProfile,
    local: LocalFinding | str,
    lanes: LanesFinding | str,
    native: NativeFinding | None,
    max_rows: int,
) -> tuple[RouteFinding, ...]:
    """Forecast of all routes. `max_rows`: rows that may be requested at once."""
    return (
        _local(acceptance, local),
        _native(acceptance, local, native),
        _lanes(acceptance, lanes, max_rows),
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


def _lanes(acceptance: AcceptanceProfile, lanes: LanesFinding | str, max_rows: int) -> RouteFinding:
    """The best lookahead, also when it is slower than plain, so that the slowdown can be shown."""
    if isinstance(lanes, str):
        return RouteFinding(Route.LANES, None, lanes)
    if obstacle := why_no_rows(
        speculates=lanes.itself, has_logprobs=lanes.logprobs, resident=lanes.resident, drafts=True
    ):
        return RouteFinding(Route.LANES, None, obstacle)
    curve = CostCurve({1: lanes.step, **lanes.rows})
    gained = {
        length: expected_speedup(
            curve, lanes.draft_step, constant_rate(acceptance.rate), length, overhead=lanes.draft_overhead
        )
        for length in range(1, max(2, max_rows))
    }
    best = max(gained, key=gained.__getitem__)
    return RouteFinding(Route.LANES, gained[best], "", best)
