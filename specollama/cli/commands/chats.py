"""`specollama chats`: list, export and delete saved conversations."""

from __future__ import annotations

import sys
from dataclasses import asdict
from pathlib import Path
from typing import Annotated

import typer

from specollama.cli.terminal import options, output
from specollama.cli.terminal.escaping import escape_controls
from specollama.errors import RunError, one_line

app = typer.Typer(help="The conversations that `specollama chat` kept.", no_args_is_help=True, add_completion=False)

Key = Annotated[str, typer.Argument(metavar="NAME", help="A conversation's name or number.")]


@app.command("list")
def list_(
    text: Annotated[str, typer.Argument(metavar="[TEXT]", help="Only those in which this was said.")] = "",
    json: Annotated[bool, typer.Option("--json", help="Print one JSON array.")] = False,
) -> None:
    """List them, the latest first."""
    from specollama.cli.chat.command_handlers import list_text
    from specollama.pairs.history_store import ConversationStore

    if json:
        print(output.json_text([asdict(each) for each in ConversationStore().summaries(text)]))
    else:
        print(list_text(ConversationStore(), text))


@app.command()
def export(
    name: Key,
    out: Annotated[
        Path | None,
        typer.Option(
            "-o", "--out", metavar="FILE.md|FILE.json", show_default="Markdown on stdout", help="Where to write it."
        ),
    ] = None,
    force: options.Force = False,
    json: Annotated[bool, typer.Option("--json", help="JSON on stdout.")] = False,
) -> None:
    """Write one as Markdown or JSON, with the counters of its replies."""
    from specollama.pairs.history_store import ConversationStore, as_markdown, as_object, export_conversation

    kept = ConversationStore().load(name)
    if out is not None:
        export_conversation(kept, out, output.overwriting(force=force), force="--force")
    elif json:
        print(output.json_text(as_object(kept), indent=2))
    else:
        text = as_markdown(kept)
        sys.stdout.write(escape_controls(text) if output.stdout().is_terminal else text)


@app.command()
def delete(name: Key) -> None:
    """Delete one, and the trace of a chat's last reply, whichever it was of."""
    from specollama.pairs.history_store import ConversationStore
    from specollama.pairs.trace.recorder import last_trace_file

    title = ConversationStore().delete(name)
    print(one_line(f"deleted: {title}"), file=sys.stderr)
    try:
        last_trace_file().unlink(missing_ok=True)
    except OSError as error:
        raise RunError(one_line(f"{last_trace_file()}: can't be deleted: {error.strerror or error}")) from error
