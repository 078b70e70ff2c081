"""`specollama trace`: a reply that was traced, as a page."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Annotated

import typer

from specollama.cli.terminal import options, output
from specollama.config import private_file
from specollama.errors import RunError, UsageError, one_line


def trace(
    file: Annotated[Path | None, typer.Argument(metavar="FILE", help="What --trace wrote.")] = None,
    last: Annotated[bool, typer.Option("--last", help="The last reply of a chat whose history is kept.")] = False,
    number: Annotated[
        int, typer.Option("--reply", metavar="N", help="Which reply of the file: 1 is the first, -1 the last.")
    ] = -1,
    out: Annotated[
        Path | None,
        typer.Option("-o", "--out", metavar="PAGE.html", show_default="FILE with .html", help="The page; - is stdout."),
    ] = None,
    force: options.Force = False,
    schema: Annotated[bool, typer.Option("--schema", help="Print the JSON schema of a trace's lines instead.")] = False,
) -> None:
    """Show a traced reply as an HTML page: each token with its origin and the target's view, the rounds over time."""
    # here, so that other commands don't load what only this one needs
    from specollama.pairs.trace.recorder import last_trace_file
    from specollama.pairs.trace.records import line_schema, read_trace
    from specollama.tools.trace_page.page import page

    if schema:
        print(json.dumps(line_schema(), indent=2))
        return
    if (file is None) != last:
        raise UsageError("give either a FILE that --trace wrote, or --last")
    source = file or last_trace_file()
    if last and not source.exists():
        raise UsageError("no reply of a chat was kept yet: `specollama chat` keeps one, or run with --trace FILE")
    replies = read_trace(source, lambda fault: print(fault, file=sys.stderr))
    if number == 0 or abs(number) > len(replies):
        raise UsageError(f"--reply {number}: {source} has {len(replies)}, numbered from 1")
    shown = page(replies[number - 1 if number > 0 else number])
    if str(out) == "-":
        sys.stdout.reconfigure(encoding="utf-8")  # type: ignore[union-attr]
        print(shown)
        return
    target = out or (Path("last-reply.html") if last else source.with_suffix(".html"))
    if target.resolve() == source.resolve():
        raise UsageError(f"{target}: is the trace itself; name the page with -o PAGE.html")
    try:
        private_file.write_new(target, shown, output.overwriting(force=force), force="--force")
    except OSError as error:
        raise RunError(one_line(f"{target}: {error.strerror or error}")) from error
    print(target)
