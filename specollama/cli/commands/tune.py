"""`specollama tune`: measure a pair on this machine, and write the resulting settings."""

from __future__ import annotations

import asyncio
import json as json_module
import os
from dataclasses import asdict
from typing import Annotated

import typer

from specollama.cli.commands.doctor import progress_note
from specollama.cli.terminal import completion, options, output
from specollama.config import trust
from specollama.config.validation import ConfigLocation
from specollama.errors import ConfigError, RunError
from specollama.tools.doctor import config_file
from specollama.tools.doctor.advice import give_advice
from specollama.tools.doctor.config_changes import Change, config_changes, cost_changes, why_unchanged
from specollama.tools.doctor.examine import TuningResult, tune_pair


def tune(
    pair: Annotated[
        str | None, typer.Argument(metavar="PAIR", autocompletion=completion.pairs, help="A pair of the configuration.")
    ] = None,
    config: options.ConfigFile = None,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Write nothing into the configuration.")] = False,
    json: Annotated[bool, typer.Option("--json", help="Print one JSON object.")] = False,
) -> None:
    """Measure a pair for a minute, and write its route and limits into the configuration; say what changed.

    What passes cost, and how drafts fare, is kept for the replies to come.
    """
    known = options.load_configuration(config)
    settings = options.named_pair(known, pair)
    if known.file is None or settings.name not in known.table.pairs:
        raise ConfigError(f"{settings.name}: no configuration file defines this pair, so there is none to write to")
    with progress_note() as note:
        tuned = asyncio.run(tune_pair(settings, os.environ, note))
    elsewhere = bool(tuned.found.elsewhere)  # where nothing was measured
    faults = [f"{each.what}: {each.do}" for each in give_advice(tuned.found) if each.prevents or elsewhere]
    if faults:
        raise RunError(faults[0])
    wanted, left = config_changes(tuned.found, settings), why_unchanged(tuned.found, settings)
    if wanted and not dry_run:
        text = config_file.read_config(known.file)
        keys = {change.key: change.after for change in wanted}
        changed = config_file.set_pair_keys(text, settings.name, keys)
        config_file.write_config(known.file, changed)
        trust.trust_own_change(known.file, text, changed)
    if json:
        told = {"changed": [asdict(change) for change in wanted], "left": left, "tuned": asdict(tuned)}
        print(json_module.dumps(told))
        return
    _show(tuned, wanted, left, str(ConfigLocation(known.file, ("pairs", settings.name))), dry_run=dry_run)


def _show(tuned: TuningResult, wanted: list[Change], left: str, where: str, *, dry_run: bool) -> None:
    say = output.stdout().out
    for change in wanted:
        before = "not set" if change.before is None else change.before
        say(f"{where}.{change.key}: {before} -> {change.after} ({change.why})")
    if wanted and dry_run:
        say("nothing was written")
    if left:
        say(f"{where}: left as it is, since nothing was learnt of its route ({left})")
    elif not wanted:
        say(f"{where}: nothing to change")
    for model, (before, after) in tuned.costs.items():
        say(f"a pass of {model}: {', '.join(cost_changes(before, after))}")
    acceptance = tuned.found.acceptance
    if acceptance and acceptance.is_measured:
        say(f"accepted: {acceptance.rate:.0%} of {acceptance.tested} tested tokens")
