"""The command line: one file a command. The answer goes to stdout, everything else to stderr."""

from __future__ import annotations

import os
import sys
from typing import Annotated

import typer

from specollama import __version__
from specollama.cli import chat, demo, embedded, pairs, run
from specollama.errors import SpecollamaError, UsageError

app = typer.Typer(
    name="specollama",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
    help="Speculative decoding for Ollama, on the client's side: a small draft model writes ahead, the large target "
    "model checks, and the words stay the target's own.",
)
app.command("run")(run.run)
app.command("chat")(chat.chat)
app.command("pairs")(pairs.pairs)
app.command("demo")(demo.demo)
app.add_typer(embedded.app, name="embedded")


def _print_version(wanted: bool) -> None:
    if wanted:
        print(f"specollama {__version__}")
        raise typer.Exit


@app.callback()
def _options(
    version: Annotated[
        bool, typer.Option("--version", help="Print the version.", callback=_print_version, is_eager=True)
    ] = False,
) -> None: ...


def main() -> None:
    """The console script. Exit codes: 1 a run failed, 2 a mistake in the call, 130 interrupted."""
    try:
        app()
    except SpecollamaError as error:
        print(f"error: {error}", file=sys.stderr)
        sys.exit(2 if isinstance(error, UsageError) else 1)
    except KeyboardInterrupt:
        sys.exit(130)
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())  # Python flushes stdout once more at exit
        sys.exit(141)
