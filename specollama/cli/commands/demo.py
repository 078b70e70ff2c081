"""`specollama demo`: the main job on the embedded engine, two servers and a real pair, nothing else needed."""

from __future__ import annotations

import asyncio
import io
import json as json_module
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console
from rich.markup import escape
from rich.table import Table
from rich.text import Text

from specollama.cli.commands.run import messages
from specollama.cli.terminal import output
from specollama.config.loading import Config, adhoc_pair
from specollama.config.settings import FileRef, PairSettings
from specollama.errors import UsageError
from specollama.pairs.report import number, percent, seconds
from specollama.pairs.request import ChatInput
from specollama.server.embedded.requirements import require_packages
from specollama.spec_decode.types import Route
from specollama.tools.bench import Comparison, compare

PROMPT = "Why is the sky blue?"
_PICTURE_WIDTH = 92  # characters


def demo(
    prompt: Annotated[str, typer.Argument(help="What to ask.")] = PROMPT,
    num_predict: Annotated[int, typer.Option(min=2, help="Most tokens of the reply.")] = 96,
    route: Annotated[
        str, typer.Option(metavar="local|lanes", help="local: both models in process; lanes: on two servers.")
    ] = "local",
    json: Annotated[bool, typer.Option("--json", help="Print the table as one JSON object, last on stdout.")] = False,
    svg: Annotated[Path | None, typer.Option(metavar="FILE", help="Save what is shown as a picture.")] = None,
) -> None:
    """Show speculation at work: a draft and a target of the embedded engine, beside plain."""
    require_packages()
    if route not in ("local", "lanes"):
        raise UsageError(f"--route {route}: the demo shows local or lanes")
    aside = output.stderr()
    with _two_files() if route == "local" else _two_servers(aside) as settings:
        conversation = ChatInput(messages(prompt, None), {"num_predict": num_predict, "temperature": 0})
        aside.print(f"\n[bold]{escape(prompt)}[/]   ({output.legend()})\n")
        show = output.text_display(origin=True, stats=False)
        comparison = asyncio.run(compare(settings, os.environ, conversation, show))
    _show_table(output.stdout(), comparison)
    if svg:
        _picture(comparison, prompt).save_svg(str(svg), title="scripts/demo")
    if json:
        print(json_module.dumps(comparison.as_object()))


@contextmanager
def _two_files() -> Iterator[PairSettings]:
    """The default pair's own files."""
    from specollama.server.embedded.default_models import default_models  # the packages have just been checked

    models = default_models()
    yield PairSettings(None, FileRef(models["target"]), (FileRef(models["draft"]),), route=Route.LOCAL)


@contextmanager
def _two_servers(aside: Console) -> Iterator[PairSettings]:
    """A server for the draft and one for the target, on free loopback ports, and the pair of both."""
    from specollama.server.embedded.default_models import default_models  # the packages have just been checked
    from specollama.server.embedded.serve import ServeSettings, serve_models

    models = default_models()
    settings = ServeSettings()
    with (
        serve_models({"draft": models["draft"]}, settings) as draft,
        serve_models({"target": models["target"]}, settings) as target,
    ):
        aside.print(f"draft on {draft.url}, target on {target.url}")
        pair = adhoc_pair(f"target@{target.url}", f"draft@{draft.url}", Config(), os.environ, route=Route.LANES)
        yield pair


def _picture(comparison: Comparison, prompt: str) -> Console:
    """A console that has recorded the comparison as a terminal shows it."""
    console = Console(
        record=True, width=_PICTURE_WIDTH, file=io.StringIO(), force_terminal=True, highlight=False, emoji=False
    )
    console.print(f"[bold]{escape(prompt)}[/]   ({output.legend()})\n")
    pieces = comparison.speculative.pieces
    console.print(Text.assemble(*((piece.text, output.ORIGIN_STYLES[piece.origin]) for piece in pieces)))
    console.print()
    _show_table(console, comparison)
    return console


def _show_table(console: Console, comparison: Comparison) -> None:
    console.print(_table(comparison))
    console.print(_factor_in_words(comparison), style="italic", soft_wrap=False)


def _table(comparison: Comparison) -> Table:
    ours, theirs = comparison.speculative.stats, comparison.plain.stats
    table = Table("", title="the same prompt both ways, temperature 0", title_justify="left")
    table.add_column("speculative", justify="right")
    table.add_column("plain", justify="right")
    table.add_row("text identical", "yes" if comparison.identical else "no", "")
    table.add_row("tokens", str(ours.eval_count), str(theirs.eval_count))
    table.add_row("rounds", str(ours.rounds), "")
    table.add_row("drafted", str(ours.drafted), "")
    table.add_row("tested", str(ours.tested), "")
    table.add_row("accepted", str(ours.accepted), "")
    table.add_row("acceptance rate", percent(ours.acceptance_rate), "")
    table.add_row("mean accepted length", number(ours.mean_accepted_length), "")
    table.add_row("rows asked", str(ours.rows), "")
    table.add_row("total", seconds(ours.total_duration), seconds(theirs.total_duration))
    table.add_row("tokens per second", number(ours.tokens_per_second), number(theirs.tokens_per_second))
    return table


def _factor_in_words(comparison: Comparison) -> str:
    """The factor, with what it means: on a CPU, lanes are shown for their words, not for their speed."""
    if comparison.factor is None:
        return "no factor: one of the replies is empty"
    if not comparison.identical:
        return f"{comparison.factor:.2f}x, but of the texts: {comparison.difference}"
    if comparison.speculative.stats.route is Route.LANES:
        why = "route lanes was forced: on a CPU passes over many rows are dear, and `auto` would run plain"
    else:
        why = "one small model with itself shows the machinery, not the gain of a large one"
    return f"{comparison.factor:.2f}x the speed of plain; {why}"
