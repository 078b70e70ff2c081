"""How a pair's drafts fare on given prompts, by kind of text, and what each route can be expected to bring."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import aclosing
from dataclasses import dataclass, field

from specollama.backends.ollama.schema import Message
from specollama.config.settings import PairSettings
from specollama.errors import RunError
from specollama.pairs.pair import Pair
from specollama.pairs.request import Conversation
from specollama.spec_decode.expected_speedup import Acceptance, Chance, always
from specollama.spec_decode.metrics import Forecast, Stats
from specollama.tools.bench.comparison import collect
from specollama.tools.bench.prompts import Prompt
from specollama.tools.doctor.examine import examine
from specollama.tools.doctor.findings import RouteFinding
from specollama.tools.doctor.forecast_quality import Quality, weighed
from specollama.tools.doctor.route_forecast import ASSUMED, expectations

_WORTHLESS = "no draft was worth its time; `--lookahead 4` drafts all the same"

Note = Callable[[str], None]


@dataclass(slots=True)
class Fared:
    """The drafts for one kind of text. `forecasts`: of those whose drafter says how sure it is."""

    tested: int = 0
    accepted: int = 0
    forecasts: list[Forecast] = field(default_factory=list)
    plain: set[str] = field(default_factory=set)  # why replies weren't drafted for

    def add(self, fared: Fared) -> None:
        self.tested += fared.tested
        self.accepted += fared.accepted
        self.forecasts += fared.forecasts
        self.plain |= fared.plain

    @property
    def quality(self) -> Quality | None:
        return weighed(self.forecasts)


@dataclass(frozen=True, slots=True)
class PairQuality:
    """All kinds, their sum, and the routes."""

    kinds: Mapping[str, Fared]
    all: Fared
    routes: Sequence[RouteFinding]


def of_reply(stats: Stats) -> Fared:
    """The drafts of one reply."""
    return Fared(stats.tested, stats.accepted, stats.forecasts, {stats.reason} - {""})


async def pair_quality(
    settings: PairSettings, environ: Mapping[str, str], prompts: Sequence[Prompt], num_predict: int, note: Note
) -> PairQuality:
    """Ask the prompts on the pair's own route, then time the models.

    Raises EndpointError and RunError as a reply does, RunError when nothing was drafted.
    """
    kinds, whole = dict[str, Fared](), Fared()
    async with Pair(settings, environ) as pair:
        for number, prompt in enumerate(prompts, start=1):
            note(f"{number}/{len(prompts)} {prompt.id}")
            asked = Conversation([Message(role="user", content=prompt.turns[0])], {"num_predict": num_predict})
            async with aclosing(pair.reply(asked)) as events:
                reply = of_reply((await collect(events)).stats)
            kinds.setdefault(prompt.category, Fared()).add(reply)
            whole.add(reply)
    if not whole.tested:
        raise RunError(f"nothing was drafted: {'; '.join(sorted(whole.plain)) or _WORTHLESS}")
    found = await examine(settings, environ, note=note)
    routes = expectations(acceptance(whole), found.local, found.lanes, found.native, found.asked_lanes)
    return PairQuality(kinds, whole, routes)


def acceptance(fared: Fared) -> Acceptance:
    """What the expectations rest on: by confidence where that is known, else one rate for all."""
    if quality := fared.quality:
        chances = (Chance(each.predicted, each.seen, each.tested / quality.tested) for each in quality.bins)
        return Acceptance(tuple(chances), quality.tested)
    return always(fared.accepted / fared.tested, fared.tested) if fared.tested else ASSUMED
