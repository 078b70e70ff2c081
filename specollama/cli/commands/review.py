"""`specollama review`: a run's items before a person, and its log before an auditor."""

from __future__ import annotations

import json as json_module
import os
import sys
from pathlib import Path
from typing import Annotated

import typer
from rich.markup import escape

from specollama.cli.commands.review_session import ReviewSession, queue
from specollama.cli.terminal import options, output
from specollama.cli.terminal.standard_streams import read_piped_text
from specollama.config.loading import Config
from specollama.config.settings import PairSettings
from specollama.errors import RunError, UsageError, one_line
from specollama.tools.review.decisions import record_decisions
from specollama.tools.review.regenerate import Regenerator
from specollama.tools.review.repair import repair_run
from specollama.tools.review.run_folder import LOG, ReviewRun, open_existing_run, verify_log
from specollama.tools.review.state import ItemStatus, as_object

_SHORTEST = 12  # characters of a hash that stand for it


def review(
    words: Annotated[
        list[str],
        typer.Argument(
            metavar="[verify|repair] RUN",
            help="A run's folder; `verify`: check its log, change nothing; `repair`: keep what is valid of it.",
        ),
    ],
    config: options.ConfigFile = None,
    reviewer: options.Reviewer = None,
    item: Annotated[
        list[str] | None,
        typer.Option(metavar="ID", help="Look at this item, decided or not. Repeatable.", show_default="what is open"),
    ] = None,
    decisions: Annotated[
        str | None,
        typer.Option(
            metavar="FILE|-",
            help='Decide by JSON lines: {"id", "decision", "digest", "reason" or "text"}, all or none.',
        ),
    ] = None,
    json: Annotated[bool, typer.Option("--json", help="Print the state as one JSON object.")] = False,
    expect: Annotated[
        str | None,
        typer.Option(metavar="HASH", help="With `verify`: a hash noted before, which must still be in the log."),
    ] = None,
) -> None:
    """Approve, reject, edit or regenerate replies, one after another; or check the log that says who did."""
    action, folder = _action_and_folder(words)
    if action == "repair":
        _repair(folder, options.reviewer_name(reviewer))
        return
    if action == "verify":
        if decisions is not None or item:
            raise UsageError(f"--{'decisions' if decisions is not None else 'item'}: goes without `verify`")
        _verify(folder, expect, json=json)
        return
    if expect is not None:
        raise UsageError("--expect: goes with `review verify RUN`")
    if item and (json or decisions is not None):
        raise UsageError("--item: goes without --json and --decisions, which are about the whole run")
    known, who = options.load_configuration(config), options.reviewer_name(reviewer)
    with open_existing_run(folder, who) as run:
        if decisions is not None:
            count = record_decisions(run, who, _text(decisions), "stdin" if decisions == "-" else decisions)
            output.stderr().print(f"{output.count_text(count, 'decision')} of {escape(who)} written")
        if json:
            print(output.json_text(as_object(run.state)))
        elif decisions is None:
            _look(run, who, known, item or [])


def _action_and_folder(words: list[str]) -> tuple[str, Path]:
    """`verify`, `repair` or "", and the run's folder."""
    if len(words) == 1:
        return "", Path(words[0])
    if len(words) == 2 and words[0] in ("verify", "repair"):
        return words[0], Path(words[1])
    raise UsageError(f"too many arguments: {' '.join(words[1:])}; give the run's folder, or: verify RUN, repair RUN")


def _repair(folder: Path, who: str) -> None:
    repaired = repair_run(folder, who)
    if repaired is None:
        print(f"{folder / LOG}: nothing is wrong with it")
        return
    for line in repaired.moved:
        print(f"set aside: {line}")
    print(f"{output.count_text(repaired.kept, 'line')} kept; the rest is in {repaired.aside}")


def _text(source: str) -> str:
    if source == "-":
        return read_piped_text()
    try:
        return Path(source).read_text(encoding="utf-8-sig")
    except (OSError, UnicodeDecodeError) as error:
        raise UsageError(f"--decisions {source}: {getattr(error, 'strerror', None) or error}") from error


def _look(run: ReviewRun, who: str, config: Config, ids: list[str]) -> None:
    items = queue(run.state, who, ids)
    if items and not (sys.stdin and sys.stdin.isatty() and sys.stdout.isatty()):
        raise UsageError("review needs a terminal; in scripts use --json, and --decisions FILE")
    with Regenerator(run, lambda: _settings(run, config), os.environ) as regenerator:
        ReviewSession(run, who, regenerator, config.table.review.mark_below).review_all(items)
    _summary(run)


def _settings(run: ReviewRun, config: Config) -> PairSettings:
    """The pair, named once more as the run was begun."""
    assert run.state.opened is not None
    call = run.state.opened.call
    return options.pair_settings(config, call.pair, call.target, call.draft, call.flags)


def _summary(run: ReviewRun) -> None:
    counts = [(status, len(run.state.with_status(status))) for status in ItemStatus]
    told = ", ".join(f"{count} {status}" for status, count in counts if count)
    folder, aside = escape(str(run.folder)), output.stderr()
    aside.print(f"{output.count_text(len(run.state.items), 'item')}: {told}")
    if not run.state.with_status(ItemStatus.WAITING, ItemStatus.FAILED, ItemStatus.OPEN) and run.state.approved():
        aside.print(f"next: specollama release {folder} -o approved.jsonl")


def _verify(folder: Path, expect: str | None, *, json: bool) -> None:
    found, faults = verify_log(folder)
    if expect is not None and not _has(found.hashes, expect):
        faults.append(f"no line has the hash {expect}: the log isn't the one of which it was noted")
    last = found.hashes[-1] if found.hashes else ""
    if json:
        whole = {"whole": not faults and not found.unfinished, "unfinished": found.unfinished, "faults": faults}
        print(json_module.dumps({**whole, "lines": len(found.hashes), "hash": last}))
    else:
        for fault in faults:
            print(one_line(fault))  # of a log that anybody may have written
    if faults:
        raise RunError(f"{folder / LOG}: isn't the log that was written ({output.count_text(len(faults), 'fault')})")
    if found.unfinished:
        torn = f", {found.torn} bytes of it are there" if found.torn else ""
        raise RunError(
            f"{folder / LOG}: a process was killed at line {found.head.count + 1}{torn}; "
            "the next batch, review or release settles it"
        )
    if not json:
        print(f"whole: {len(found.hashes)} lines, the last has the hash {last}")


def _has(hashes: object, expect: str) -> bool:
    if len(expect) < _SHORTEST:
        raise UsageError(f"--expect {expect}: give {_SHORTEST} characters of the hash at least")
    return isinstance(hashes, list) and any(known.startswith(expect.lower()) for known in hashes)
