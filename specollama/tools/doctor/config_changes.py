"""Changes of a pair's configuration that tuning makes. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from specollama.config.settings import PairSettings
from specollama.spec_decode.types import Route
from specollama.tools.doctor.findings import LanesFinding, PairFindings, RouteFinding

_GAIN = 1.05  # expected, from which a route is worth being named


@dataclass(frozen=True, slots=True)
class Change:
    """A key of the pair's table. `before` None: it wasn't set."""

    key: str
    before: Any
    after: Any
    why: str


def config_changes(found: PairFindings, settings: PairSettings) -> list[Change]:
    """The changes to write: keys whose measured value differs from the configured one."""
    if why_unchanged(found, settings):
        return []
    best = _chosen(found)
    wanted: dict[str, tuple[Any, str]] = {"route": (str(best.route), _why(best, found))}
    now: dict[str, Any] = {"route": str(settings.route), "lanes": settings.lanes, "lookahead": settings.lookahead}
    if best.route is Route.LANES and isinstance(found.lanes, LanesFinding):
        rows = min(found.lanes.slots, best.lookahead + 1)
        wanted["lanes"] = (rows, f"{best.lookahead} drafted tokens gain most, of {found.lanes.slots} slots seen")
    if best.route in (Route.LOCAL, Route.LANES) and settings.lookahead != "auto":
        wanted["lookahead"] = ("auto", "it is chosen token by token, by what is expected of each")
    return [Change(key, now[key], *value) for key, value in wanted.items() if now[key] != value[0]]


def why_unchanged(found: PairFindings, settings: PairSettings) -> str:
    """Why the pair stays unchanged: no measurement concerns its route. "" when one does."""
    known = {route.route: route for route in found.routes}
    if settings.route is Route.NATIVE and _speculates(found) and known[Route.NATIVE].speedup is None:
        return f"native: {known[Route.NATIVE].why}"
    if _gains(_best(found)):
        return ""
    measured = {Route.LOCAL: found.local, Route.LANES: found.lanes}
    failed = [route for route, finding in measured.items() if isinstance(finding, str)]
    if len(failed) < 2:
        failed = [route for route in failed if route is settings.route]
    return "; ".join(f"{route}: {known[route].why}" for route in failed)


def _chosen(found: PairFindings) -> RouteFinding:
    """The best route; where none gains, auto if the target can be opened (lookup may gain yet), else plain."""
    best = _best(found)
    if _gains(best):
        return best
    return RouteFinding(Route.PLAIN if isinstance(found.local, str) else Route.AUTO, 1.0)


def _best(found: PairFindings) -> RouteFinding:
    """The best of the routes that are available now."""
    usable = [route for route in found.routes if route.route is not Route.NATIVE or _speculates(found)]
    return replace(found, routes=tuple(usable)).best


def _speculates(found: PairFindings) -> bool:
    """Whether the native server is known to speculate."""
    return found.native is not None and found.native.running


def _gains(best: RouteFinding) -> bool:
    return (best.speedup or 0.0) >= _GAIN


def _why(best: RouteFinding, found: PairFindings) -> str:
    if best.route in (Route.PLAIN, Route.AUTO):
        return "no draft of this model is expected to gain here"
    known = "measured" if found.acceptance and found.acceptance.is_measured else "assumed"
    rate = f"{found.acceptance.rate:.0%}" if found.acceptance else "an unknown share"
    return f"expected at {best.speedup:.2f}x, with {rate} accepted ({known})"


def cost_changes(before: Mapping[int, float], after: Mapping[int, float]) -> list[str]:
    """Costs of passes of some sizes now, and before if they were known."""
    sizes = [size for size in (1, 2, 4, 8, 16) if size in after]
    return [f"{size}: {_earlier(before.get(size))}{after[size] * 1000:.0f} ms" for size in sizes]


def _earlier(seconds: float | None) -> str:
    return "" if seconds is None else f"{seconds * 1000:.0f} -> "
