"""`specollama export`: a pair as a set-up of an engine that drafts and verifies by itself."""

from __future__ import annotations

import asyncio
import os
import sys
from pathlib import Path
from typing import Annotated

import typer

from specollama.cli.terminal import completion, options
from specollama.config.schema import suggest_names
from specollama.config.settings import PairSettings
from specollama.errors import UsageError
from specollama.tools.export.model_facts import describe_models
from specollama.tools.export.writers import ExportEngine, ExportRequest, export_files

_EXECUTABLE = 0o755


def export(
    to: Annotated[
        str,
        typer.Option(
            "--to",
            metavar="|".join(ExportEngine),
            autocompletion=completion.one_of(ExportEngine),
            help="The engine.",
            rich_help_panel="Set-up",
        ),
    ],
    pair: Annotated[
        str | None, typer.Argument(metavar="PAIR", autocompletion=completion.pairs, help="A pair of the configuration.")
    ] = None,
    config: options.ConfigFile = None,
    target: options.TargetName = None,
    draft: options.DraftName = None,
    target_hf: Annotated[
        str | None,
        typer.Option(metavar="OWNER/NAME", help="The target's Hugging Face repository.", rich_help_panel="Set-up"),
    ] = None,
    draft_hf: Annotated[
        str | None,
        typer.Option(metavar="OWNER/NAME", help="The draft model's.", rich_help_panel="Set-up"),
    ] = None,
    tokens: Annotated[
        int | None,
        typer.Option(
            min=1,
            help="Tokens to draft in a round.",
            show_default="the pair's lookahead, else as the engine's own examples have it",
            rich_help_panel="Set-up",
        ),
    ] = None,
    out: Annotated[
        Path | None,
        typer.Option(metavar="DIR", help="Write the files there.", show_default="stdout", rich_help_panel="Set-up"),
    ] = None,
) -> None:
    """Write the command line, and the files if any, with which an engine runs the pair by itself."""
    if to not in list(ExportEngine):
        raise UsageError(f"--to {to}: there is no such engine{suggest_names(to, list(ExportEngine))}")
    settings = options.pair_settings(options.load_configuration(config), pair, target, draft, {})
    files = export_files(ExportEngine(to), _wanted(settings, tokens, target_hf, draft_hf))
    if out is None:
        print("\n".join(_shown(files)), end="")
    else:
        _write(files, out)


def _wanted(settings: PairSettings, tokens: int | None, target_hf: str | None, draft_hf: str | None) -> ExportRequest:
    target, drafting = asyncio.run(describe_models(settings, os.environ))
    lengths = settings.lookahead if isinstance(settings.lookahead, tuple) else (settings.lookahead,)
    fixed = max((length for length in lengths if isinstance(length, int)), default=0)
    context, native = settings.options.get("num_ctx"), settings.native.url
    return ExportRequest(target, drafting, tokens or fixed or None, context, target_hf, draft_hf, native)


def _shown(files: dict[str, str]) -> list[str]:
    """Several files as one text: each under its name."""
    if len(files) == 1:
        return list(files.values())
    return [f"# file: {name}\n{text}" for name, text in files.items()]


def _write(files: dict[str, str], folder: Path) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    for name, text in files.items():
        path = folder / name
        if path.exists() and path.read_text(encoding="utf-8") != text:
            raise UsageError(f"--out {folder}: {name} is there already, with something else in it")
    for name, text in files.items():
        path = folder / name
        if not path.exists():
            with path.open("x", encoding="utf-8") as new:  # nothing that came in between is written over
                new.write(text)
        if name.endswith(".sh"):
            path.chmod(_EXECUTABLE)
        print(path, file=sys.stderr)
