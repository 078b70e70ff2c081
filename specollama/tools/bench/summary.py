"""From measurements to figures: by prompt, by kind, and overall. Pure.

The figure of a prompt is that of its first replies: each came after a fresh start, or was the first that its engine was
asked for. What an engine that remembers makes of a prompt that it has seen before is a figure of its own.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass, field
from statistics import median
from typing import Any

from specollama.spec_decode.metrics import Stats
from specollama.tools.bench.comparison import Comparison, gap_at_difference
from specollama.tools.bench.intervals import (
    Interval,
    Pair,
    geometric_mean,
    mean_interval,
    pairs_interval,
    ratio_of_medians,
)
from specollama.tools.bench.near_ties import GapDrift
from specollama.tools.bench.runner import Measurement, Measurements, comparison_faults
from specollama.tools.bench.systems import AGAINST, PLAIN


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
    """Medians over the first replies: tokens per second of decoding, and nanoseconds to the first text.

    The latter are None where one of the two may have had the prompt in its KV cache, and the other not.
    """

    plain: float
    side: float
    plain_first_token: float | None
    first_token: float | None


@dataclass(frozen=True, slots=True)
class PromptFigures:
    """One prompt on one side.

    `pairs` are of first replies, `overall_pairs` the same with the reading of the prompt; `seen_pairs` and
    `seen_overall_pairs` are of replies to a prompt that the side's engine had seen before. Without `pairs` there is no
    factor: `error` says why, or all came in one burst, and there was nothing to time.
    """

    id: str
    category: str
    error: str = ""
    pairs: tuple[Pair, ...] = ()
    overall_pairs: tuple[Pair, ...] = ()
    seen_pairs: tuple[Pair, ...] = ()
    seen_overall_pairs: tuple[Pair, ...] = ()
    rates: Rates | None = None
    counts: Stats = field(default_factory=Stats)  # added up over the first replies
    replies: int = 0
    differences: tuple[Difference, ...] = ()
    routes: tuple[str, ...] = ()  # that the replies really took, with the reason where it was plain

    @property
    def speedup(self) -> float | None:
        return ratio_of_medians(self.pairs) if self.pairs else None

    @property
    def overall(self) -> float | None:
        return ratio_of_medians(self.overall_pairs) if self.overall_pairs else None

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
            "speedup_overall": self.overall,
            "seen_before": _seen([self]),
            "medians": asdict(self.rates) if self.rates else None,
            **_acceptance(self.counts),
            "identical_share": _share(self.replies - len(self.differences), self.replies),
            "differences": [asdict(difference) for difference in self.differences],
            "routes": list(self.routes),
        }


@dataclass(frozen=True, slots=True)
class PromptGroup:
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
        return _mean(prompt.overall_pairs for prompt in self.timed)

    @property
    def slowest_overall(self) -> PromptFigures | None:
        known = [prompt for prompt in self.timed if prompt.overall is not None]
        return min(known, key=lambda prompt: prompt.overall or 0, default=None)

    @property
    def seen_before(self) -> dict[str, Any] | None:
        """The figures of replies to prompts that the side's engine had seen before; None where there are none."""
        return _seen(self.prompts)

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
        rates = [getattr(prompt.rates, side) for prompt in self.prompts if prompt.rates]
        known = [rate for rate in rates if rate is not None]
        return median(known) if known else None

    def as_object(self) -> dict[str, Any]:
        return {
            "speedup": self.speedup,
            "speedup_median": self.median,
            "interval": _interval(self.interval),
            "speedup_overall": self.speedup_overall,
            "seen_before": self.seen_before,
            "plain_tokens_per_second": self.rate("plain"),
            "tokens_per_second": self.rate("side"),
            "plain_first_token_duration": self.rate("plain_first_token"),
            "first_token_duration": self.rate("first_token"),
            **_acceptance(self.counts),
            "identical_share": self.identical_share,
        }


@dataclass(frozen=True, slots=True)
class ContestantFigures(PromptGroup):
    """All prompts on one side, and the bound below which a gap is a near-tie."""

    name: str = ""
    bound: GapDrift = field(default_factory=GapDrift)
    temperature: float = 0.0

    @property
    def kinds(self) -> dict[str, PromptGroup]:
        names = dict.fromkeys(prompt.category for prompt in self.prompts)
        return {
            name: PromptGroup(tuple(prompt for prompt in self.prompts if prompt.category == name)) for name in names
        }

    @property
    def routes(self) -> Counter[str]:
        """How many replies really took each route."""
        return Counter(route for prompt in self.prompts for route in prompt.routes)

    def summary(self) -> dict[str, Any]:
        """The figures that comparisons are made with; every factor beside the share of identical texts."""
        kinds, slowest, slowest_overall = self.kinds, self.slowest, self.slowest_overall
        near = Counter(difference.near_tie for difference in self.differences)
        return {
            "speedup_geomean": self.speedup,
            "speedup_interval": _interval(self.interval),
            "speedup_by_kind": {name: kind.speedup for name, kind in kinds.items()},
            "speedup_median_by_kind": {name: kind.median for name, kind in kinds.items()},
            "speedup_min": slowest.speedup if slowest else None,
            "slowest_prompt": slowest.id if slowest else None,
            "speedup_overall_geomean": self.speedup_overall,
            "speedup_overall_by_kind": {name: kind.speedup_overall for name, kind in kinds.items()},
            "speedup_overall_min": slowest_overall.overall if slowest_overall else None,
            "slowest_prompt_overall": slowest_overall.id if slowest_overall else None,
            "seen_before": self.seen_before,
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


def contestant_figures(measured: Measurements, side: str) -> ContestantFigures:
    """Measurements of one side, compared with plain."""
    bound = measured.gap_drifts.get(side, GapDrift())
    prompts = [_prompt(measured, side, question, kind, bound) for question, kind in measured.questions().items()]
    return ContestantFigures(tuple(prompts), name=side, bound=bound, temperature=measured.temperature)


def _prompt(measured: Measurements, side: str, question: str, category: str, bound: GapDrift) -> PromptFigures:
    pairs = list(zip(measured.of(PLAIN, question), measured.of(side, question), strict=False))
    first = [(plain, each) for plain, each in pairs if not each.seen_before]
    told = measured.plain_replies.get(question)
    counts = _added(each.reply.stats for _, each in first)
    routes = tuple(_route(each) for _, each in pairs)
    if not pairs:
        return PromptFigures(question, category, "not measured")
    if found := "; ".join(comparison_faults(pairs)):
        return PromptFigures(question, category, found, counts=counts, routes=routes)
    differences = [_difference(plain, each, told, bound, sampled=measured.temperature > 0) for plain, each in pairs]
    seen = [(plain, each) for plain, each in pairs if each.seen_before]
    known = _decoding(first)
    return PromptFigures(
        question,
        category,
        pairs=known,
        overall_pairs=_overall([pair for pair in first if _alike(pair)]),
        seen_pairs=_decoding(seen),
        seen_overall_pairs=_overall(seen),
        rates=_rates(first, known) if known else None,
        counts=counts,
        replies=len(pairs),
        differences=tuple(difference for difference in differences if difference),
        routes=routes,
    )


_Both = tuple[Measurement, Measurement]  # plain and the side


def _decoding(pairs: Sequence[_Both]) -> tuple[Pair, ...]:
    """Their rates of decoding; none where one of them came in one burst."""
    rates = [(plain.timed.tokens_per_second, side.timed.tokens_per_second) for plain, side in pairs]
    known = tuple((plain, rate) for plain, rate in rates if plain and rate)
    return known if len(known) == len(rates) else ()


def _overall(pairs: Sequence[_Both]) -> tuple[Pair, ...]:
    """Their rates from the request to the end."""
    rates = [(plain.timed.tokens_per_second_overall, side.timed.tokens_per_second_overall) for plain, side in pairs]
    return tuple((plain, rate) for plain, rate in rates if plain and rate)


def _alike(pair: _Both) -> bool:
    """Whether both may have had the prompt in their KV cache, or neither: else the reading isn't compared."""
    plain, side = pair
    return plain.prompt_cached == side.prompt_cached


def _rates(pairs: Sequence[_Both], known: Sequence[Pair]) -> Rates:
    alike = [pair for pair in pairs if _alike(pair)]
    return Rates(
        plain=median(plain for plain, _ in known),
        side=median(side for _, side in known),
        plain_first_token=median(plain.timed.first_text or 0 for plain, _ in alike) if alike else None,
        first_token=median(side.timed.first_text or 0 for _, side in alike) if alike else None,
    )


def _mean(prompts: Iterable[Sequence[Pair]]) -> float | None:
    """The geometric mean of the prompts' speed-ups; None when none was timed."""
    known = [ratio_of_medians(pairs) for pairs in prompts if pairs]
    return geometric_mean(known) if known else None


def _seen(prompts: Sequence[PromptFigures]) -> dict[str, Any] | None:
    replies = sum(len(prompt.seen_overall_pairs) for prompt in prompts)
    if not replies:
        return None
    speedup = _mean(prompt.seen_pairs for prompt in prompts)
    overall = _mean(prompt.seen_overall_pairs for prompt in prompts)
    return {"speedup": speedup, "speedup_overall": overall, "replies": replies}


def _route(measurement: Measurement) -> str:
    stats = measurement.reply.stats
    if measurement.side == AGAINST:
        return "with its engine's own drafts" if stats.drafted else "without telling of drafts"
    return f"{stats.route} ({stats.reason})" if stats.reason else str(stats.route)


def _difference(
    plain: Measurement, side: Measurement, told: Any, bound: GapDrift, *, sampled: bool
) -> Difference | None:
    comparison = Comparison(side.reply, plain.reply)
    offset = comparison.first_difference
    if offset is None:
        return None
    if sampled:  # the noise of a draw decides as well, so the gap between the two best tokens explains nothing
        return Difference(side.repeat, offset, None, None)
    same_so_far = told is not None and told.text[:offset] == plain.reply.text[:offset]
    gaps = [comparison.gap, gap_at_difference(told, side.reply) if same_so_far else None]
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
