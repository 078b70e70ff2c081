"""From measurements to figures: by prompt, by kind, and overall. Pure."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass, field
from statistics import median
from typing import Any

from specollama.bench.comparison import Comparison, gap_where_parted
from specollama.bench.intervals import (
    Interval,
    Pair,
    geometric_mean,
    mean_interval,
    pairs_interval,
    ratio_of_medians,
)
from specollama.bench.measuring import Measured, Measurement, faults
from specollama.bench.near_ties import Movements
from specollama.bench.sides import AGAINST, PLAIN
from specollama.stats import Stats


@dataclass(frozen=True, slots=True)
class Difference:
    """Where a reply parts from plain's: offset in characters, and the larger of the two sides' gaps there.

    `near_tie`: whether the gap is below the bound; None when neither side told its most probable tokens there.
    """

    repeat: int
    offset: int
    gap: float | None
    near_tie: bool | None


@dataclass(frozen=True, slots=True)
class Rates:
    """Medians over the repeats: tokens per second of decoding, and nanoseconds to the first text."""

    plain: float
    side: float
    plain_first_token: float
    first_token: float


@dataclass(frozen=True, slots=True)
class PromptFigures:
    """One prompt on one side.

    Without `pairs` there is no factor: `error` says why, or all came in one burst, and there was nothing to time.
    """

    id: str
    category: str
    error: str = ""
    pairs: tuple[Pair, ...] = ()
    overall_pairs: tuple[Pair, ...] = ()  # the prompt's reading included
    rates: Rates | None = None
    counts: Stats = field(default_factory=Stats)  # added up over the repeats
    replies: int = 0
    differences: tuple[Difference, ...] = ()
    routes: tuple[str, ...] = ()  # that the replies really took, with the reason where it was plain

    @property
    def speedup(self) -> float | None:
        return ratio_of_medians(self.pairs) if self.pairs else None

    @property
    def interval(self) -> Interval | None:
        return pairs_interval(self.pairs)

    def as_object(self) -> dict[str, Any]:
        return {
            "id": self.id,
            "category": self.category,
            "error": self.error,
            "speedup": self.speedup,
            "interval": _interval(self.interval),
            "speedup_overall": ratio_of_medians(self.overall_pairs) if self.overall_pairs else None,
            "medians": asdict(self.rates) if self.rates else None,
            **_acceptance(self.counts),
            "identical_share": _share(self.replies - len(self.differences), self.replies),
            "differences": [asdict(difference) for difference in self.differences],
            "routes": list(self.routes),
        }


@dataclass(frozen=True, slots=True)
class Group:
    """The prompts of a kind, or all of them."""

    prompts: tuple[PromptFigures, ...]

    @property
    def timed(self) -> list[PromptFigures]:
        return [prompt for prompt in self.prompts if prompt.pairs]

    @property
    def speedup(self) -> float | None:
        """The geometric mean; None when no prompt could be timed."""
        return geometric_mean([ratio_of_medians(prompt.pairs) for prompt in self.timed]) if self.timed else None

    @property
    def speedup_overall(self) -> float | None:
        overall = [prompt.overall_pairs for prompt in self.timed if prompt.overall_pairs]
        return geometric_mean([ratio_of_medians(pairs) for pairs in overall]) if overall else None

    @property
    def median(self) -> float | None:
        return median(ratio_of_medians(prompt.pairs) for prompt in self.timed) if self.timed else None

    @property
    def interval(self) -> Interval | None:
        return mean_interval([prompt.pairs for prompt in self.timed])

    @property
    def slowest(self) -> PromptFigures | None:
        return min(self.timed, key=lambda prompt: ratio_of_medians(prompt.pairs), default=None)

    @property
    def counts(self) -> Stats:
        return _added(prompt.counts for prompt in self.prompts)

    @property
    def replies(self) -> int:
        return sum(prompt.replies for prompt in self.prompts)

    @property
    def identical_share(self) -> float | None:
        return _share(self.replies - len(self.differences), self.replies)

    @property
    def differences(self) -> list[Difference]:
        return [difference for prompt in self.prompts for difference in prompt.differences]

    @property
    def errors(self) -> list[PromptFigures]:
        return [prompt for prompt in self.prompts if prompt.error]

    def rate(self, side: str) -> float | None:
        """The median of the prompts' figures; `side`: a field of Rates."""
        known = [getattr(prompt.rates, side) for prompt in self.prompts if prompt.rates]
        return median(known) if known else None

    def as_object(self) -> dict[str, Any]:
        return {
            "speedup": self.speedup,
            "speedup_median": self.median,
            "interval": _interval(self.interval),
            "speedup_overall": self.speedup_overall,
            "plain_tokens_per_second": self.rate("plain"),
            "tokens_per_second": self.rate("side"),
            "plain_first_token_duration": self.rate("plain_first_token"),
            "first_token_duration": self.rate("first_token"),
            **_acceptance(self.counts),
            "identical_share": self.identical_share,
        }


@dataclass(frozen=True, slots=True)
class SideFigures(Group):
    """All prompts on one side, and the bound below which a gap is a near-tie."""

    name: str = ""
    bound: Movements = field(default_factory=Movements)

    @property
    def kinds(self) -> dict[str, Group]:
        names = dict.fromkeys(prompt.category for prompt in self.prompts)
        return {name: Group(tuple(prompt for prompt in self.prompts if prompt.category == name)) for name in names}

    @property
    def routes(self) -> Counter[str]:
        """How many replies really took each route."""
        return Counter(route for prompt in self.prompts for route in prompt.routes)

    def summary(self) -> dict[str, Any]:
        """The figures that comparisons are made with; every factor beside the share of identical texts."""
        kinds, slowest = self.kinds, self.slowest
        near = Counter(difference.near_tie for difference in self.differences)
        return {
            "speedup_geomean": self.speedup,
            "speedup_interval": _interval(self.interval),
            "speedup_by_kind": {name: kind.speedup for name, kind in kinds.items()},
            "speedup_median_by_kind": {name: kind.median for name, kind in kinds.items()},
            "speedup_min": slowest.speedup if slowest else None,
            "slowest_prompt": slowest.id if slowest else None,
            "speedup_overall_geomean": self.speedup_overall,
            "identical_share": self.identical_share,
            "differences": {"near_tie": near[True], "no_near_tie": near[False], "gap_unknown": near[None]},
            "near_tie": self.bound.as_object(),
            **_acceptance(self.counts),
            "accepted_at": list(self.counts.accepted_at),
            "first_token_duration": self.rate("first_token"),
            "plain_first_token_duration": self.rate("plain_first_token"),
            "prompts": len(self.prompts),
            "errors": {prompt.id: prompt.error for prompt in self.errors},
            "routes": dict(self.routes),
        }

    def as_object(self) -> dict[str, Any]:
        return {
            "kinds": {name: kind.as_object() for name, kind in self.kinds.items()},
            "prompts": [prompt.as_object() for prompt in self.prompts],
        }


def side_figures(measured: Measured, side: str) -> SideFigures:
    """What was measured of a side, beside plain."""
    bound = measured.movements.get(side, Movements())
    prompts = [_prompt(measured, side, question, kind, bound) for question, kind in measured.questions().items()]
    return SideFigures(tuple(prompts), name=side, bound=bound)


def _prompt(measured: Measured, side: str, question: str, category: str, bound: Movements) -> PromptFigures:
    pairs = list(zip(measured.of(PLAIN, question), measured.of(side, question), strict=False))
    told = measured.told.get(question)
    counts = _added(each.reply.stats for _, each in pairs)
    routes = tuple(_route(each) for _, each in pairs)
    if not pairs:
        return PromptFigures(question, category, "not measured")
    if found := "; ".join(faults(pairs)):
        return PromptFigures(question, category, found, counts=counts, routes=routes)
    differences = [_difference(plain, each, told, bound) for plain, each in pairs]
    rates = [(plain.timed.tokens_per_second, each.timed.tokens_per_second) for plain, each in pairs]
    known = tuple((plain, rate) for plain, rate in rates if plain and rate)
    short = len(known) < len(rates)
    overall = [(plain.timed.tokens_per_second_overall, each.timed.tokens_per_second_overall) for plain, each in pairs]
    return PromptFigures(
        question,
        category,
        pairs=() if short else known,
        overall_pairs=tuple((plain, rate) for plain, rate in overall if plain and rate),
        rates=None if short else _rates(pairs, known),
        counts=counts,
        replies=len(pairs),
        differences=tuple(difference for difference in differences if difference),
        routes=routes,
    )


def _rates(pairs: Sequence[tuple[Measurement, Measurement]], known: Sequence[Pair]) -> Rates:
    return Rates(
        plain=median(plain for plain, _ in known),
        side=median(side for _, side in known),
        plain_first_token=median(plain.timed.first_text or 0 for plain, _ in pairs),
        first_token=median(side.timed.first_text or 0 for _, side in pairs),
    )


def _route(measurement: Measurement) -> str:
    stats = measurement.reply.stats
    if measurement.side == AGAINST:
        return "with its engine's own drafts" if stats.drafted else "without telling of drafts"
    return f"{stats.route} ({stats.reason})" if stats.reason else str(stats.route)


def _difference(plain: Measurement, side: Measurement, told: Any, bound: Movements) -> Difference | None:
    comparison = Comparison(side.reply, plain.reply)
    offset = comparison.first_difference
    if offset is None:
        return None
    same_so_far = told is not None and told.text[:offset] == plain.reply.text[:offset]
    gaps = [comparison.gap, gap_where_parted(told, side.reply) if same_so_far else None]
    gap = max((gap for gap in gaps if gap is not None), default=None)
    return Difference(side.repeat, offset, gap, None if gap is None else gap < bound.bound)


def _added(several: Iterable[Stats]) -> Stats:
    """The counts of several replies, added up."""
    total = Stats()
    for stats in several:
        for name in ("rounds", "drafted", "tested", "accepted", "recovered", "bonus", "emitted"):
            setattr(total, name, getattr(total, name) + getattr(stats, name))
        places = max(len(total.accepted_at), len(stats.accepted_at))
        both = [(each + [0] * places)[:places] for each in (total.accepted_at, stats.accepted_at)]
        total.accepted_at = [ours + theirs for ours, theirs in zip(*both, strict=True)]
    return total


def _acceptance(counts: Stats) -> dict[str, Any]:
    return {
        "acceptance_rate": counts.acceptance_rate,
        "draft_efficiency": counts.draft_efficiency,
        "mean_accepted_length": counts.mean_accepted_length,
        "rounds": counts.rounds,
        "drafted": counts.drafted,
        "tested": counts.tested,
        "accepted": counts.accepted,
    }


def _interval(interval: Interval | None) -> dict[str, float] | None:
    return asdict(interval) if interval else None


def _share(part: int, whole: int) -> float | None:
    return part / whole if whole else None
