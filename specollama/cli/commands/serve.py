"""`specollama serve`: a drop-in server in front of Ollama."""

from __future__ import annotations

import sys
from typing import Annotated

import typer

from specollama.cli.terminal import options, signals
from specollama.config.loading import Config
from specollama.server.proxy.requirements import require_packages
from specollama.server.proxy.systemd_unit import user_unit


def serve(
    config: options.ConfigFile = None,
    host: Annotated[
        str, typer.Option(help="Address to listen on. Other than loopback only with SPECOLLAMA_TOKEN set.")
    ] = "127.0.0.1",
    port: Annotated[int, typer.Option(min=0, max=65535, help="0 picks a free one.")] = 11435,
    allow_anyone: Annotated[
        bool, typer.Option("--allow-anyone", help="Listen on any address without a token, under any host name.")
    ] = False,
    trace: options.Trace = None,
    trace_texts: options.TraceTexts = False,
    print_unit: Annotated[
        bool, typer.Option("--print-unit", help="Print a systemd user unit with these options, and serve nothing.")
    ] = False,
) -> None:
    """Serve Ollama's and OpenAI's APIs: requests for a pair, or for its target, are speculated; all else is passed on.

    SIGHUP reads the configuration again.
    """
    known = options.load_configuration(config)
    if print_unit:
        print(user_unit(_command(known, host, port, allow_anyone)), end="")
        return
    require_packages()
    # here, since without the packages just checked it can't even be imported
    from specollama.server.proxy.serve import run

    signals.leave_to_server()
    run(known, host=host, port=port, allow_anyone=allow_anyone, trace=options.trace_file(trace, texts=trace_texts))


def _command(config: Config, host: str, port: int, allow_anyone: bool) -> list[str]:
    """The command line that serves the same from any directory."""
    named = [] if config.file is None else ["--config", str(config.file.absolute())]
    anyone = ["--allow-anyone"] if allow_anyone else []
    return [sys.executable, "-m", "specollama", "serve", *named, "--host", host, "--port", str(port), *anyone]
