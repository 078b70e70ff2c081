"""A benchmark's figures at the terminal: every factor in one row with the check of its texts."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from specollama.pairs.report import number, percent
from specollama.tools.bench.intervals import LEVEL
from specollama.tools.bench.summary import ContestantFigures, PromptFigures, PromptGroup

_HEADINGS = (
    *("plain\ntok/s", "tok/s", "speed-\nup", "interval", "end to\nend", "accept-\nance", "texts\nsame", "first\ntoken"),
)
_DIFFERENCES_SHOWN = 5


def show_figures(console: Console, figures: Sequence[ContestantFigures]) -> None:
    """A table for each side, and below it what the reader has to know of its figures."""
    for side in figures:
        console.print(_table(side))
        for line in _remarks(side):
            console.print(escape(line))
        console.print()


def _table(side: ContestantFigures) -> Table:
    title = f"{side.name} beside plain at temperature {side.temperature:g}, first replies"
    table = Table(title=title, title_justify="left", box=SIMPLE_HEAD, padding=(0, 1, 0, 0), pad_edge=False)
    table.add_column("kind", overflow="fold", vertical="bottom")
    for heading in _HEADINGS:
        table.add_column(heading, justify="right", vertical="bottom", no_wrap=True)
    for name, kind in side.kinds.items():
        table.add_row(escape(name), *_cells(kind))
    table.add_section()
    table.add_row("all", *_cells(side))
    if seen := side.seen_before:
        table.add_row("seen before", "", "", _factor(seen["speedup"]), "", _factor(seen["speedup_overall"]))
    return table


def _cells(group: PromptGroup) -> Iterator[str]:
    interval = group.interval
    yield number(group.rate("plain"))
    yield number(group.rate("side"))
    yield _factor(group.speedup)
    yield "" if interval is None else f"{interval.low:.2f}-{interval.high:.2f}"
    yield _factor(group.speedup_overall)
    yield percent(_accepted(group))
    yield percent(group.identical_share)
    yield "" if (first := group.rate("first_token")) is None else f"{first / 1e6:.0f} ms"


def _factor(factor: float | None) -> str:
    return "" if factor is None else f"{factor:.2f}x"


def _accepted(group: PromptGroup) -> float | None:
    """The acceptance rate; where an engine doesn't tell what it tested, of what it drafted."""
    counts = group.counts
    return counts.draft_efficiency if counts.acceptance_rate is None else counts.acceptance_rate


def _remarks(side: ContestantFigures) -> Iterator[str]:
    yield "speed-up: of decoding, geometric mean over the prompts of the ratio of medians; " + _confidence(side)
    yield "end to end: with the reading of the prompt, by target and draft"
    if side.slowest is not None:
        yield f"slowest: {_prompt(side.slowest)}"
    if side.slowest_overall is not None:
        yield f"slowest end to end: {side.slowest_overall.id} {side.slowest_overall.overall or 0:.2f}x"
    if (first := side.rate("plain_first_token")) is not None:
        yield f"first token of plain: {first / 1e6:.0f} ms"
    if side.speedup is not None and side.speedup_overall is None:
        yield "end to end isn't compared: one of the two found the prompt in its engine's KV cache"
    if seen := side.seen_before:
        yield (
            f"seen before: {seen['replies']} replies of an engine that isn't started afresh, to prompts that it had "
            "answered before"
        )
    counts = side.counts
    if counts.mean_accepted_length is not None:
        yield f"mean accepted length: {_lengths(side)}"
    if counts.acceptance_rate is None and counts.draft_efficiency is not None:
        yield "accepted: of the drafted tokens; the engine doesn't tell how many it tested"
    if side.differences:
        yield f"near-tie: a gap below {side.bound.bound:.4f} ({side.bound.source})"
    yield from _differences(side)
    for route, replies in side.routes.items():
        yield f"{replies} replies ran {route}"
    for prompt in side.errors:
        yield f"no factor for {prompt.id}: {prompt.error}"
    untimed = [prompt.id for prompt in side.prompts if not prompt.pairs and not prompt.error]
    if untimed:
        yield f"no factor, since all came in one burst: {', '.join(untimed)}"


def _lengths(side: ContestantFigures) -> str:
    groups = [*side.kinds.items(), ("all", side)]
    known = [(name, group.counts.mean_accepted_length) for name, group in groups]
    return ", ".join(f"{name} {length:.2f}" for name, length in known if length is not None)


def _confidence(side: ContestantFigures) -> str:
    if side.interval is None:
        return "one pair of replies has no interval"
    return f"interval: {min(LEVEL, side.interval.confidence):.0%}"


def _prompt(prompt: PromptFigures) -> str:
    interval = prompt.interval
    bounds = f" ({interval.low:.2f}-{interval.high:.2f}, {interval.confidence:.0%})" if interval else ""
    identical = prompt.replies - len(prompt.differences)
    return f"{prompt.id} {prompt.speedup or 0:.2f}x{bounds}, {identical} of {prompt.replies} texts identical"


def _differences(side: ContestantFigures) -> Iterator[str]:
    """The first difference of each prompt that has one, those that no near-tie explains first."""
    found = [(prompt.id, prompt.differences[0]) for prompt in side.prompts if prompt.differences]
    found.sort(key=lambda each: (each[1].near_tie is True, each[1].near_tie is None))
    for name, difference in found[:_DIFFERENCES_SHOWN]:
        if difference.gap is None:
            what = "the gap isn't known"
        else:
            what = f"{'a near-tie' if difference.near_tie else 'no near-tie'}, gap {difference.gap:.4f}"
        yield f"{name}: texts part after {difference.offset} characters: {what}"
    if len(found) > _DIFFERENCES_SHOWN:
        yield f"texts of {len(found) - _DIFFERENCES_SHOWN} more prompts part: see the file"
