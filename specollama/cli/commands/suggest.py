"""`specollama pairs suggest`: pairs that the installed models make, and drafts that are worth a pull."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Iterator, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Annotated, Any

import typer

from specollama.cli.terminal import options, output
from specollama.config import trust
from specollama.config.endpoints import resolve_host
from specollama.config.loading import LOCAL_NAME, Config
from specollama.errors import RunError
from specollama.tools.doctor import config_file
from specollama.tools.doctor.installed_models import installed_pairs
from specollama.tools.doctor.suggestions import InstalledModel, PullSuggestion, Suggestion, best_of_each, suggest_pulls


def suggest(
    config: options.ConfigFile = None,
    write: Annotated[
        bool, typer.Option("--write", help="Add the best pair of each target to the configuration file.")
    ] = False,
    json: Annotated[bool, typer.Option("--json", help="Print one JSON object.")] = False,
) -> None:
    """Find the pairs that the installed models make, the most promising first, and drafts that are worth a pull.

    The servers are the endpoints of the configuration; without any, $OLLAMA_HOST or this machine.
    """
    new = write and config is not None and not config.exists()
    known = Config() if new else options.load_configuration(config)
    endpoints = known.endpoints() or [resolve_host(os.environ)]
    models, found, faults = asyncio.run(installed_pairs(endpoints, os.environ))
    if faults and not models:
        raise RunError(faults[0])
    missing = list(suggest_pulls(models, found))
    path = known.file or config or Path(LOCAL_NAME)
    added = _write(path, best_of_each(found)) if write else []
    if json:
        shown = {"pairs": [_object(pair) for pair in found], "pulls": [asdict(pull) for pull in missing]}
        print(output.json_text({**shown, "faults": faults, "added": added}))
        return
    for fault in faults:
        output.stderr().out(fault)
    for line in _lines(models, found, missing):
        output.stdout().out(line)
    if write:
        output.stderr().out(f"{path}: added {', '.join(added)}" if added else f"{path}: nothing to add")


def _write(path: Path, found: Sequence[Suggestion]) -> list[str]:
    before = config_file.read_config(path)
    text, added = config_file.add_pairs(before, found)
    if added:
        config_file.write_config(path, text)
        trust.trust_own_change(path, before, text)
    return added


def _object(pair: Suggestion) -> dict[str, Any]:
    return {
        "name": pair.name,
        "target": asdict(pair.target),
        "draft": asdict(pair.draft),
        "expected": round(pair.speedup, 3),
        "tokenizers": pair.tokenizers,
    }


def _lines(
    models: Sequence[InstalledModel], found: Sequence[Suggestion], missing: Sequence[PullSuggestion]
) -> Iterator[str]:
    several = len({model.url for model in models}) > 1
    for pair in found:
        target, draft = _named(pair.target, several), _named(pair.draft, several)
        yield f"{target} with {draft}: {pair.speedup:.2f}x by their sizes; tokenizers {pair.tokenizers}"
    if not found:
        yield "no two of these models make a pair: a draft has the target's tokenizer, and a third of its size or less"
    for pull in missing:
        instead = f", smaller than {pull.better}" if pull.better else ""
        fits = "" if pull.same else ", whose control tokens differ"
        yield f"{pull.target} would have a better draft{instead}{fits}:"
        yield f"    ollama pull {pull.draft}"


def _named(model: InstalledModel, several: bool) -> str:
    return f"{model.name}@{model.endpoint or model.url}" if several else model.name
