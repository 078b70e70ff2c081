"""`specollama pairs`: the pairs of the configuration, and what can be done with them."""

from __future__ import annotations

import asyncio
import json as json_module
import os
from typing import Annotated

import typer
from rich.table import Table
from rich.text import Text

from specollama.cli import options, output
from specollama.config import Config
from specollama.errors import ConfigError
from specollama.survey import ModelFinding, PairFinding, survey


def pairs(
    names: Annotated[
        list[str] | None, typer.Argument(metavar="PAIR", show_default="all", help="Pairs of the configuration.")
    ] = None,
    config: options.ConfigFile = None,
    measure: Annotated[
        bool, typer.Option("--measure", help="Load the models and time them anew, a minute at most for each pair.")
    ] = False,
    json: Annotated[bool, typer.Option("--json", help="Print one JSON array.")] = False,
) -> None:
    """Show each pair: its servers and models, whether they fit, and the route that a reply would take."""
    known = options.configuration(config)
    chosen = names or list(known.table.pairs)
    if not chosen:
        raise ConfigError("there are no pairs: no configuration file defines one (the README shows how)")
    findings = asyncio.run(_survey_all(known, chosen, measure=measure))
    if json:
        print(json_module.dumps([finding.as_object() for finding in findings], ensure_ascii=False))
    else:
        for finding in findings:
            _show(finding)


async def _survey_all(config: Config, names: list[str], *, measure: bool) -> list[PairFinding]:
    """One after another when they are timed, since they would disturb each other."""
    settings = [config.pair(name, os.environ) for name in names]
    if measure:
        return [await survey(pair, os.environ, measure=True) for pair in settings]
    return list(await asyncio.gather(*(survey(pair, os.environ) for pair in settings)))


def _show(finding: PairFinding) -> None:
    table = Table(box=None, show_header=False, pad_edge=False)
    table.add_column(style="dim", no_wrap=True)
    table.add_column(overflow="fold")
    table.add_row("target", _model(finding.target))
    table.add_row("draft", _model(finding.draft) if finding.draft else "none")
    table.add_row("tokenizers", Text(finding.tokenizers))
    table.add_row("slots", "not measured" if finding.slots is None else f"{finding.slots} at least seen at once")
    table.add_row("route", Text(f"{finding.route}: {finding.reason}"))
    console = output.stdout()
    console.print(Text(finding.name, style="bold"))
    console.print(table)
    console.print()


def _model(model: ModelFinding) -> Text:
    if model.fault:
        return Text(f"{model.model}: {model.fault}", style="red")
    engine = f" ({model.engine})" if model.engine != model.server else ""
    served = f", {model.server} {model.version}{engine}" if model.version else ""
    return Text(f"{model.model} at {model.url}{served}")
