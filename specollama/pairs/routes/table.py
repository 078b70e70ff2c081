"""The routes by their users' names. A new route is a file beside this one, and its line here."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from specollama.pairs.routes.greedy import GreedyRoute
from specollama.pairs.routes.lanes import LanesRoute
from specollama.pairs.routes.local import LocalRoute
from specollama.pairs.routes.native import NativeRoute
from specollama.pairs.routes.scoring import ScoringRoute
from specollama.pairs.routing import ReplyRoute
from specollama.spec_decode.types import Route


@dataclass(frozen=True, slots=True)
class RouteResources:
    """What the routes of a pair share. `environ`: the environment variables, which may hold tokens.

    `local` and `scoring` are open before a route is chosen, because the choice depends on what they find.
    """

    environ: Mapping[str, str]
    local: LocalRoute
    scoring: ScoringRoute


RouteTable = Mapping[Route, Callable[[RouteResources], ReplyRoute]]

ROUTES: RouteTable = {
    Route.LOCAL: lambda shared: shared.local,
    Route.LANES: lambda shared: LanesRoute(),
    Route.SCORING: lambda shared: shared.scoring,
    Route.GREEDY: lambda shared: GreedyRoute(),
    Route.NATIVE: lambda shared: NativeRoute(shared.environ),
}
"""Each route, opened once for a pair. `plain` needs none: the target's own server answers."""
