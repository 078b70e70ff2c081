"""`specollama release`: release the approved texts, each once."""

from __future__ import annotations

import shlex
import shutil
from pathlib import Path
from typing import Annotated

import typer
from rich.markup import escape

from specollama.cli.terminal import options, output
from specollama.errors import RunError, UsageError
from specollama.tools.review import release as releasing
from specollama.tools.review.log_entries import CommandMarked
from specollama.tools.review.release import OutboundCommand
from specollama.tools.review.run_folder import ReviewRun, open_existing_run
from specollama.tools.review.state import ReviewItem

_MARKS = {"sent": True, "not-sent": False}


def release(
    run: Annotated[Path, typer.Argument(metavar="RUN", help="A run's folder.")],
    out: Annotated[
        Path | None,
        typer.Option("--out", "-o", metavar="FILE", help="Write what is approved, an object a line, to a new file."),
    ] = None,
    exec_: Annotated[
        str | None,
        typer.Option(
            "--exec",
            metavar="CMD",
            help="Run a command for each approved item, the item as JSON on its stdin; no shell.",
        ),
    ] = None,
    go: Annotated[
        bool, typer.Option("--go", help="Really run it; without, --exec only says what would be run.")
    ] = False,
    again: Annotated[
        bool,
        typer.Option("--again", help="Also what went out another way before: in a file, or by a command."),
    ] = False,
    partial: Annotated[bool, typer.Option("--partial", help="Though other items aren't decided yet.")] = False,
    mark: Annotated[
        list[str] | None,
        typer.Option(
            metavar="ID|FILE=sent|not-sent",
            help="What became of a command that failed or whose result isn't known, or of a file that is gone. "
            "Repeatable.",
        ),
    ] = None,
    reviewer: options.Reviewer = None,
) -> None:
    """Let out what was approved, in the form that was approved, and each item once."""
    marks = [_mark(text) for text in mark or []]
    if out is None and exec_ is None and not marks:
        raise UsageError("nothing to do: give -o FILE, --exec CMD, or both")
    if go and exec_ is None:
        raise UsageError("--go: goes with --exec CMD")
    command = _command(exec_) if exec_ is not None else []
    who = options.reviewer_name(reviewer)
    with open_existing_run(run, who) as opened:
        _finish(opened, who, marks)
        for marked in marks:
            opened.append(who, marked)
        if (out or command) and not partial:
            releasing.refuse_undecided(opened)
        items = releasing.items_to_run(opened.state, again=again)  # before a file of the same call counts
        _tell_what_stays(opened, again=again, file=out is not None, command=bool(command))
        if out is not None:
            count = releasing.write_release(opened, who, out, again=again)
            output.stderr().print(f"{output.count_text(count, 'item')} written to {escape(str(out))}")
        if command:
            _run(opened, who, command, items, go=go)


def _mark(text: str) -> CommandMarked:
    id, _, word = text.rpartition("=")
    if not id or word not in _MARKS:
        raise UsageError(f"--mark {text}: write ID=sent or ID=not-sent (or FILE=...)")
    return CommandMarked(id=id, sent=_MARKS[word])


def _command(text: str) -> list[str]:
    try:
        command = shlex.split(text)
    except ValueError as error:
        raise UsageError(f"--exec {text}: {error}") from error
    if not command:
        raise UsageError("--exec: names no command")
    if shutil.which(command[0]) is None:
        raise UsageError(f"--exec {text}: there is no program {command[0]}")
    return command


def _finish(run: ReviewRun, who: str, marks: list[CommandMarked]) -> None:
    """What a killed release had begun; `marks` that are about its file are used up."""
    announced = run.state.releasing
    for marked in [each for each in marks if announced and str(Path(each.id).absolute()) == announced.file]:
        releasing.mark_release(run, who, sent=marked.sent)
        marks.remove(marked)
    if file := releasing.finish_release(run, who):
        output.stderr().print(f"a release that was broken off is complete: {escape(file)}")


def _tell_what_stays(run: ReviewRun, *, again: bool, file: bool, command: bool) -> None:
    """What isn't sent, since it went out another way before."""
    if again:
        return
    for wanted, items_of, what in (
        (file, releasing.items_to_release, "by a command"),
        (command, releasing.items_to_run, "in a file"),
    ):
        if wanted and (left := len(items_of(run.state, again=True)) - len(items_of(run.state))):
            output.stderr().print(
                f"{output.count_text(left, 'item')} went out {what} before: not sent again (--again sends what did)"
            )


def _run(run: ReviewRun, who: str, command: list[str], items: list[ReviewItem], *, go: bool) -> None:
    aside = output.stderr()
    if go:
        count = OutboundCommand(run, who, command, lambda id: aside.print(f"sent: {escape(id)}")).send_all(items)
        aside.print(f"{output.count_text(count, 'item')} sent")
    else:
        for item in items:
            print(f"would run for {item.id}: {shlex.join(command)}")
        aside.print(f"a dry run: nothing was run; --go runs it for {output.count_text(len(items), 'item')}")
    _refuse_unknown(run)


def _refuse_unknown(run: ReviewRun) -> None:
    unsettled = releasing.unresolved_items(run.state)
    if unsettled:
        told = ", ".join(f"{item.id} ({item.outgoing})" for item in unsettled)
        first = unsettled[0].id
        raise RunError(
            f"{told}: not run again. Look whether it went out, and decide by hand: "
            f"--mark {first}=sent, or --mark {first}=not-sent to run it again"
        )
