"""`specollama pairs quality`: measure a pair's acceptance rate on given prompts."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Iterator
from dataclasses import asdict
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from specollama.cli.commands.doctor import progress_note
from specollama.cli.terminal import completion, options, output
from specollama.pairs.report import number, percent
from specollama.tools.bench.prompts import built_in, load, pick_evenly
from specollama.tools.doctor.acceptance_probe import AcceptanceCounts, PairAcceptance, measure_acceptance
from specollama.tools.doctor.findings import RouteFinding


def quality(
    pair: Annotated[
        str | None, typer.Argument(metavar="PAIR", autocompletion=completion.pairs, help="A pair of the configuration.")
    ] = None,
    config: options.ConfigFile = None,
    target: options.TargetName = None,
    draft: options.DraftName = None,
    lookahead: options.Lookahead = None,
    prompts: Annotated[
        Path | None,
        typer.Option(metavar="FILE", show_default="those of `specollama bench`", help="What to ask, as for `bench`."),
    ] = None,
    limit: Annotated[int | None, typer.Option(min=1, help="Most prompts to ask, spread over the kinds.")] = None,
    num_predict: Annotated[int, typer.Option(min=2, help="Most tokens of a reply.")] = 96,
    json: Annotated[bool, typer.Option("--json", help="Print one JSON object.")] = False,
) -> None:
    """Ask prompts, and say how drafts fare by kind of text and by how sure the drafter was, and what routes would gain.

    The Brier score is the mean square that forecasts are off, 0 at best; constant: of always forecasting the rate.
    """
    given = options.flags(lookahead=lookahead, route=None, rule=None, keep_alive=None, sampling={})
    settings = options.pair_settings(options.load_configuration(config), pair, target, draft, given)
    chosen = load(prompts) if prompts else built_in()
    with progress_note() as note:
        asked = pick_evenly(chosen, limit or len(chosen))
        found = asyncio.run(measure_acceptance(settings, os.environ, asked, num_predict, note))
    if json:
        print(output.json_text(_object(found)))
    else:
        show_quality(output.stdout(), found)


def show_quality(console: Console, found: PairAcceptance) -> None:
    """A table by kind, one by forecast, and what the routes would gain."""
    console.print(_kinds(found))
    if whole := found.all.quality:
        console.print()
        table = _table("forecast", "tested", "predicted", "accepted")
        for each in whole.bins:
            row = f"{each.above:g}-{each.to:g}", str(each.tested), percent(each.predicted), percent(each.seen)
            table.add_row(*row)
        console.print(table)
    console.print()
    for line in _routes(found):
        console.out(line, highlight=False)


def _kinds(found: PairAcceptance) -> Table:
    table = _table("kind", "tested", "accepted", "predicted", "Brier", "constant")
    for name, fared in {**found.kinds, "all": found.all}.items():
        rate, weighed = fared.accepted / fared.tested if fared.tested else None, fared.quality
        scores = (percent(weighed.predicted_rate), f"{weighed.brier:.3f}", f"{weighed.constant:.3f}") if weighed else ()
        table.add_row(escape(name), str(fared.tested), percent(rate), *scores)
    return table


def _table(*columns: str) -> Table:
    table = Table(box=None, pad_edge=False)
    for place, column in enumerate(columns):
        table.add_column(column, justify="right" if place else "left", header_style="dim")
    return table


def _routes(found: PairAcceptance) -> Iterator[str]:
    for route in found.routes:
        gain = f"{number(route.speedup)}x expected" if route.speedup is not None else "not known"
        yield f"{route.route}: {gain}{f' ({route.why})' if route.why else ''}"


def _object(found: PairAcceptance) -> dict[str, Any]:
    return {
        "kinds": {name: _fared(fared) for name, fared in found.kinds.items()},
        "all": _fared(found.all),
        "routes": [_route(route) for route in found.routes],
    }


def _fared(fared: AcceptanceCounts) -> dict[str, Any]:
    quality = asdict(fared.quality) if fared.quality else None
    return {
        "tested": fared.tested,
        "accepted": fared.accepted,
        "plain": sorted(fared.plain_reasons),
        "quality": quality,
    }


def _route(route: RouteFinding) -> dict[str, Any]:
    return {"route": str(route.route), "expected": route.speedup, "why": route.why}
