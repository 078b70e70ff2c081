"""The figures as a picture."""

from __future__ import annotations

from collections.abc import Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any

from specollama.errors import MissingPackage
from specollama.tools.bench.summary import ContestantFigures, PromptGroup

if TYPE_CHECKING:
    from matplotlib.axes import Axes

_BAR_SPACE = 0.8  # of the distance between two kinds, that all their bars take together
_LONGEST_DRAFT = 16  # places shown


def draw(figures: Sequence[ContestantFigures], file: Path, title: str) -> None:
    """Save a PNG: the speed-up by kind with its intervals, and how often each place of a draft was accepted.

    Replies to prompts that a side's engine had seen before have bars of their own, hatched.

    Raises MissingPackage without matplotlib.
    """
    if find_spec("matplotlib") is None:
        raise MissingPackage("no picture: matplotlib isn't installed; run pip install 'specollama[bench]'")
    from matplotlib.figure import Figure  # without pyplot: no window system is looked for

    figure = Figure(figsize=(11, 4.5), layout="constrained")
    speed, places = figure.subplots(1, 2, width_ratios=[3, 2])
    _draw_speed(speed, figures)
    _draw_places(places, figures)
    figure.suptitle(_literal(title), fontsize="medium")
    figure.savefig(file, dpi=150)


def _draw_speed(axes: Axes, figures: Sequence[ContestantFigures]) -> None:
    kinds = list(dict.fromkeys(kind for side in figures for kind in side.kinds))
    series = [(side, seen) for side in figures for seen in (False, True) if side.seen_before or not seen]
    width = _BAR_SPACE / len(series)
    for number, (side, seen) in enumerate(series):
        groups = [*(side.kinds.get(kind) for kind in kinds), side]
        bars = [
            (place, group, height) for place, group in enumerate(groups) if group and (height := _height(group, seen))
        ]
        lefts = [place + (number - (len(series) - 1) / 2) * width for place, _, _ in bars]
        errors = None if seen else _errors([group for _, group, _ in bars])
        label = f"{side.name}, seen before" if seen else _label(side)
        hatch = "//" if seen else None
        axes.bar(lefts, [each[2] for each in bars], width, yerr=errors, capsize=3, label=label, hatch=hatch)
    axes.axhline(1, color="black", linewidth=0.8)
    axes.set_xticks(range(len(kinds) + 1), [*(_literal(kind) for kind in kinds), "all"], rotation=20)
    axes.set_ylabel("speed over plain (decoding)")
    axes.set_title("speed-up of first replies and its interval", fontsize="medium")
    axes.legend(fontsize="small")


def _height(group: PromptGroup, seen: bool) -> float:
    """The speed-up of first replies, or of those to prompts seen before; 0 where there is none."""
    if not seen:
        return group.speedup or 0
    return ((found := group.seen_before) and found["speedup"]) or 0


def _errors(groups: Sequence[Any]) -> list[list[float]]:
    """Distances from each bar's top down and up to its interval's bounds; 0 where there is none."""
    known = [(group.speedup, group.interval) for group in groups]
    down = [max(0, speedup - interval.low) if interval else 0 for speedup, interval in known]
    up = [max(0, interval.high - speedup) if interval else 0 for speedup, interval in known]
    return [down, up]


def _literal(text: str) -> str:
    """A name with its dollar signs escaped: matplotlib reads text between dollar signs as a formula."""
    return text.replace("$", r"\$")


def _label(side: ContestantFigures) -> str:
    identical = "" if side.identical_share is None else f", {side.identical_share:.0%} of texts identical"
    return f"{side.name}{identical}"


def _draw_places(axes: Axes, figures: Sequence[ContestantFigures]) -> None:
    for side in figures:
        counts = side.counts
        shares = [accepted / counts.rounds for accepted in counts.accepted_at[:_LONGEST_DRAFT] if counts.rounds]
        if shares:
            axes.plot(range(1, len(shares) + 1), shares, marker="o", label=side.name)
    axes.set_ylim(0, 1)
    axes.set_xlabel("place in the draft")
    axes.set_ylabel("share of rounds that accepted it")
    axes.set_title("acceptance by place", fontsize="medium")
    axes.locator_params(axis="x", integer=True)
