"""`specollama doctor`: look, measure, advise; nothing is changed."""

from __future__ import annotations

import asyncio
import json as json_module
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict
from typing import Annotated, Any

import typer
from rich.table import Table
from rich.text import Text

from specollama.backends.ollama.client import OllamaServer
from specollama.cli.terminal import completion, options, output
from specollama.config.endpoints import resolve_host
from specollama.config.loading import Config
from specollama.config.settings import PairSettings
from specollama.tools.doctor.advice import give_advice, server_advice
from specollama.tools.doctor.examine import examine_pair
from specollama.tools.doctor.findings import Advice, PairFindings, ServerFinding
from specollama.tools.doctor.servers import inspect_server
from specollama.tools.doctor.service_environment import Service, lines_for
from specollama.tools.doctor.text_report import pair_lines, server_line

ServiceName = Annotated[
    Service | None,
    typer.Option("--service", show_default="as on this machine", help="How the Ollama to be changed is run."),
]


def doctor(
    pair: Annotated[
        str | None, typer.Argument(metavar="PAIR", autocompletion=completion.pairs, show_default="all", help="A pair.")
    ] = None,
    config: options.ConfigFile = None,
    target: options.TargetName = None,
    draft: options.DraftName = None,
    measure: Annotated[
        bool, typer.Option("--measure", help="Ask real prompts as well, for half a minute: how drafts fare.")
    ] = False,
    service: ServiceName = None,
    json: Annotated[bool, typer.Option("--json", help="Print one JSON object.")] = False,
) -> None:
    """Look at servers and pairs, load and time the models, and say what to change. Changes nothing itself.

    Ends with exit code 1 when something prevents speculation.
    """
    known = options.load_configuration(config)
    chosen = _chosen(known, pair, target, draft)
    if chosen:
        with progress_note() as note:
            found = asyncio.run(_examine(chosen, measure, note))
        advice = [give_advice(each) for each in found]
        if json:
            print(json_module.dumps({"pairs": [_object(*both) for both in zip(found, advice, strict=True)]}))
        else:
            for each, about in zip(found, advice, strict=True):
                _show_pair(each, about, service)
        prevented = any(about.prevents for each in advice for about in each)
    else:
        prevented = _server_alone(service, json=json)
    if prevented:
        raise typer.Exit(1)


def _chosen(known: Config, pair: str | None, target: str | None, draft: str | None) -> list[PairSettings]:
    """The pair that is named or described, or all of the configuration; none where there is no configuration."""
    if pair is None and target is None and draft is None:
        return [known.pair(name, os.environ) for name in known.table.pairs]
    return [options.pair_settings(known, pair, target, draft, {})]


async def _examine(pairs: list[PairSettings], measure: bool, note: Callable[[str], None]) -> list[PairFindings]:
    """One after another: they would disturb each other's times."""
    found = list[PairFindings]()
    for settings in pairs:
        named = f"{settings.name}: " if settings.name else ""

        def say(what: str, named: str = named) -> None:
            note(f"{named}{what}")

        found.append(await examine_pair(settings, os.environ, measure=measure, note=say))
    return found


def _server_alone(service: Service | None, *, json: bool) -> bool:
    """The server that is used when nothing is configured."""
    found = asyncio.run(_look())
    advice = [*server_advice(found), *([] if found.fault else [_no_pairs(found)])]
    if json:
        print(json_module.dumps({"server": asdict(found), "advice": [each.as_object() for each in advice]}))
    else:
        if found.reachable:
            output.stdout().print(Text(server_line(found)))
        _show_advice(advice, service)
    return any(each.prevents for each in advice)


async def _look() -> ServerFinding:
    endpoint = resolve_host(os.environ)
    async with OllamaServer(endpoint.url, **endpoint.connection_settings(os.environ)) as server:
        return await inspect_server(server, endpoint)


def _no_pairs(found: ServerFinding) -> Advice:
    there = f"{len(found.models)} models there" if found.models else "no models there yet"
    lines = ("specollama pairs suggest",)
    return Advice(f"no pair is configured ({there})", found.url, "see which pairs these models make", lines=lines)


def _object(found: PairFindings, advice: list[Advice]) -> dict[str, Any]:
    best = found.best
    return {
        **asdict(found),
        "best": {"route": best.route, "speedup": best.speedup},
        "advice": [each.as_object() for each in advice],
    }


def _show_pair(found: PairFindings, advice: list[Advice], service: Service | None) -> None:
    console = output.stdout()
    if found.name:
        console.print(Text(found.name, style="bold"))
    if found.routes:
        table = Table(box=None, show_header=False, pad_edge=False)
        table.add_column(style="dim", no_wrap=True)
        table.add_column(overflow="fold")
        for name, words in pair_lines(found):
            table.add_row(name, Text(words))
        console.print(table)
    _show_advice(advice, service)
    console.print()


def _show_advice(advice: list[Advice], service: Service | None) -> None:
    console = output.stdout()
    for each in advice:
        style = "red" if each.prevents else "yellow"
        mark = "fault" if each.prevents else "advice"
        where = "" if each.where in each.what else f" ({each.where})"
        console.print(Text(f"{mark}: ", style).append(f"{each.what}{where}: {each.do}", style=""))
        commands = lines_for(service, each.where, each.environment) if each.environment else ()
        for line in (*commands, *each.lines):
            console.print(Text(f"    {line}"))


@contextmanager
def progress_note() -> Iterator[Callable[[str], None]]:
    """Show the current step on a terminal."""
    console = output.stderr()
    if not console.is_terminal:
        yield lambda what: None
        return
    with console.status("") as status:
        yield lambda what: status.update(Text(what))
