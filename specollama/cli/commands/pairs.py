"""`specollama pairs`: show the pairs of the configuration, measure their drafts, and suggest other pairs."""

from __future__ import annotations

import asyncio
import os
from typing import Annotated, Any

import typer
from rich.table import Table
from rich.text import Text
from typer.core import TyperGroup

from specollama.cli.commands.quality import quality
from specollama.cli.commands.suggest import suggest
from specollama.cli.terminal import completion, options, output
from specollama.config.loading import Config
from specollama.config.settings import EMBEDDED
from specollama.errors import ConfigError
from specollama.tools.doctor.pair_status import ModelFinding, PairFinding, pair_status


class _Shows(TyperGroup):
    """`show` may be left out: `specollama pairs coder` shows that pair."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        return super().parse_args(ctx, self.completed(args))

    def completed(self, args: list[str]) -> list[str]:
        """The arguments with the command that is meant."""
        named = bool(args) and (args[0] in self.commands or args[0] in ("-h", "--help"))
        return args if named else ["show", *args]


app = typer.Typer(
    cls=_Shows,
    add_completion=False,
    help="Show the pairs of the configuration (`show` may be left out), how well they draft, or suggest others.",
)


@app.command("show")
def pairs(
    names: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="PAIR", autocompletion=completion.pairs, show_default="all", help="Pairs of the configuration."
        ),
    ] = None,
    config: options.ConfigFile = None,
    measure: Annotated[
        bool, typer.Option("--measure", help="Load the models and time them anew, a minute at most for each pair.")
    ] = False,
    json: Annotated[bool, typer.Option("--json", help="Print one JSON array.")] = False,
) -> None:
    """Show each pair: its servers and models, whether they fit, and the route that a reply would take.

    Ends with 1 if no target can be used.
    """
    known = options.load_configuration(config)
    chosen = names or list(known.table.pairs) or ([EMBEDDED] if known.is_embedded(None) else [])
    if not chosen:
        raise ConfigError("there are no pairs: no configuration file defines one; run `specollama init`")
    findings = asyncio.run(_survey_all(known, chosen, measure=measure))
    if json:
        print(output.json_text([finding.as_object() for finding in findings]))
    else:
        for finding in findings:
            _show(finding)
    if all(finding.target.fault for finding in findings):
        raise typer.Exit(1)  # what is shown has said why


async def _survey_all(config: Config, names: list[str], *, measure: bool) -> list[PairFinding]:
    """One after another when they are timed, since they would disturb each other."""
    settings = [options.named_pair(config, name) for name in names]
    if measure:
        return [await pair_status(pair, os.environ, measure=True) for pair in settings]
    return list(await asyncio.gather(*(pair_status(pair, os.environ) for pair in settings)))


def _show(finding: PairFinding) -> None:
    table = Table(box=None, show_header=False, pad_edge=False)
    table.add_column(style="dim", no_wrap=True)
    table.add_column(overflow="fold")
    table.add_row("target", _model(finding.target))
    table.add_row("draft", _model(finding.draft) if finding.draft else "no model")
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


app.command("suggest")(suggest)
app.command("quality")(quality)
