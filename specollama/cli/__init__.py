"""The command line: one file a command. The answer goes to stdout, everything else to stderr."""

from __future__ import annotations

import errno
import sys
from typing import Annotated, NoReturn

import typer

from specollama._version import __version__
from specollama.cli.command_table import LazyGroup
from specollama.cli.terminal import signals, standard_streams
from specollama.cli.terminal.log import LogLevel, shown_log
from specollama.errors import SpecollamaError, UsageError

_FULL = (errno.ENOSPC, errno.EFBIG, errno.EIO)  # of a write: files that are written name themselves

app = typer.Typer(
    name="specollama",
    cls=LazyGroup,
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
    help="Speculative decoding for Ollama, on the client's side: a small draft model writes ahead, the large target "
    "model checks, and the words stay the target's own.",
    epilog="First time here? specollama init sets up a pair.",
)


def _print_version(wanted: bool) -> None:
    if wanted:
        print(f"specollama {__version__}")
        raise typer.Exit


@app.callback()
def _options(
    context: typer.Context,
    version: Annotated[
        bool, typer.Option("--version", help="Print the version.", callback=_print_version, is_eager=True)
    ] = False,
    log_level: Annotated[
        LogLevel | None,
        typer.Option(
            envvar="SPECOLLAMA_LOG",
            case_sensitive=False,
            help="Log requests to servers, their times, and decisions on stderr. Never texts, never tokens' values.",
        ),
    ] = None,
) -> None:
    if log_level is not None:
        context.with_resource(shown_log(log_level))


def main() -> None:
    """The console script. Exit codes: 1 a run failed, 2 a mistake in the call, 130 interrupted, 128 + n by signal n.

    An interrupt, and a pipe that nobody reads any more, typer turns into exit codes.
    """
    standard_streams.allow_any_text()
    with signals.end_on_signals():
        _call()


def _call() -> None:
    """Run the command of the arguments. A fault is one line on stderr."""
    try:
        app([standard_streams.decode_terminal_text(argument) for argument in sys.argv[1:]], prog_name="specollama")
    except SpecollamaError as error:
        _fail(str(error), 2 if isinstance(error, UsageError) else 1)
    except OSError as error:  # a full disk, say; servers' failures are EndpointErrors
        standard_streams.discard_stdout()
        where = error.filename or ("standard output" if error.errno in _FULL else "")
        _fail(": ".join(str(part) for part in (where, error.strerror or error) if part), 1)


def _fail(message: str, code: int) -> NoReturn:
    from specollama.cli.terminal.escaping import escape_controls  # here, since only a fault needs it

    print(f"error: {escape_controls(message)}", file=sys.stderr)
    sys.exit(code)
