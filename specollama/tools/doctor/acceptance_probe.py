"""Measure a pair's acceptance rate on given prompts, by category, and forecast each route's speedup."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import aclosing
from dataclasses import dataclass, field

from specollama.backends.ollama.schema import Message
from specollama.config.settings import PairSettings
from specollama.errors import RunError
from specollama.pairs.pair import Pair
from specollama.pairs.request import ChatInput
from specollama.spec_decode.expected_speedup import AcceptanceProfile, ConfidenceBin, constant_rate
from specollama.spec_decode.metrics import Forecast, Stats
from specollama.tools.bench.comparison import collect_reply
from specollama.tools.bench.prompts import Prompt
from specollama.tools.doctor.examine import examine_pair
from specollama.tools.doctor.findings import RouteFinding
from specollama.tools.doctor.forecast_quality import ForecastQuality, score_forecasts
from specollama.tools.doctor.route_forecast import ASSUMED_PROFILE, forecast_routes

_WORTHLESS = "no draft was worth its time; `--lookahead 4` drafts all the same"

Note = Callable[[str], None]


@dataclass(slots=True)
class AcceptanceCounts:
    """Drafted tokens of one category. `forecasts`: of tokens whose drafter gives a probability."""

    tested: int = 0
    accepted: int = 0
    forecasts: list[Forecast] = field(default_factory=list)
    plain_reasons: set[str] = field(default_factory=set)  # why replies weren't drafted for

    def add(self, fared: AcceptanceCounts) -> None:
        self.tested += fared.tested
        self.accepted += fared.accepted
        self.forecasts += fared.forecasts
        self.plain_reasons |= fared.plain_reasons

    @property
    def quality(self) -> ForecastQuality | None:
        return score_forecasts(self.forecasts)


@dataclass(frozen=True, slots=True)
class PairAcceptance:
    """Counts by category, their sum, and the forecast of each route."""

    kinds: Mapping[str, AcceptanceCounts]
    all: AcceptanceCounts
    routes: Sequence[RouteFinding]


def counts_of_reply(stats: Stats) -> AcceptanceCounts:
    """Counts of one reply's drafts."""
    return AcceptanceCounts(stats.tested, stats.accepted, stats.forecasts, {stats.reason} - {""})


async def measure_acceptance(
    settings: PairSettings, environ: Mapping[str, str], prompts: Sequence[Prompt], num_predict: int, note: Note
) -> PairAcceptance:
    """Answer the prompts on the pair's own route, then time the models.

    Raises EndpointError and RunError as a reply does, RunError when nothing was drafted.
    """
    kinds, whole = dict[str, AcceptanceCounts](), AcceptanceCounts()
    async with Pair(settings, environ) as pair:
        for number, prompt in enumerate(prompts, start=1):
            note(f"{number}/{len(prompts)} {prompt.id}")
            asked = ChatInput([Message(role="user", content=prompt.turns[0])], {"num_predict": num_predict})
            async with aclosing(pair.reply(asked)) as events:
                reply = counts_of_reply((await collect_reply(events)).stats)
            kinds.setdefault(prompt.category, AcceptanceCounts()).add(reply)
            whole.add(reply)
    if not whole.tested:
        raise RunError(f"nothing was drafted: {'; '.join(sorted(whole.plain_reasons)) or _WORTHLESS}")
    found = await examine_pair(settings, environ, note=note)
    routes = forecast_routes(acceptance_profile(whole), found.local, found.lanes, found.native, found.asked_lanes)
    return PairAcceptance(kinds, whole, routes)


def acceptance_profile(fared: AcceptanceCounts) -> AcceptanceProfile:
    """The acceptance rate that forecasts use: by the drafter's confidence where that is known, else one rate."""
    if quality := fared.quality:
        chances = (ConfidenceBin(each.predicted, each.seen, each.tested / quality.tested) for each in quality.bins)
        return AcceptanceProfile(tuple(chances), quality.tested)
    return constant_rate(fared.accepted / fared.tested, fared.tested) if fared.tested else ASSUMED_PROFILE
