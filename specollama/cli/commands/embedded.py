"""`specollama embedded`: an Ollama-compatible server in process, to try everything on."""

from __future__ import annotations

from typing import Annotated

import typer

from specollama.cli.terminal import signals
from specollama.server.embedded.requirements import require_packages

app = typer.Typer(
    help="An Ollama-compatible server in process, with a small model to try everything on.", add_completion=False
)


@app.callback()
def _group() -> None:
    """Keeps `serve` a command of its own: typer would merge a single one into its group."""


@app.command()
def serve(
    model: Annotated[
        list[str] | None,
        typer.Option(
            metavar="NAME=FILE.gguf",
            help="A model to serve, or draft or target alone for one of the default pair. Repeatable.",
        ),
    ] = None,
    host: Annotated[
        str, typer.Option(help="Address to listen on. Other than loopback only with SPECOLLAMA_TOKEN set.")
    ] = "127.0.0.1",
    port: Annotated[int, typer.Option(min=0, max=65535, help="0 picks a free one.")] = 11435,
    parallel: Annotated[int, typer.Option(min=1, help="Requests that a model works on at once.")] = 8,
    num_ctx: Annotated[int, typer.Option(min=4, help="Context of a request, in tokens.")] = 4096,
    threads: Annotated[
        int | None, typer.Option(min=1, show_default="half of the processors", help="Threads of a model.")
    ] = None,
) -> None:
    """Serve the given models, by default a pair of SmolLM2-135M: draft (Q4_1) and target (F32)."""
    require_packages()
    # here, since without the packages just checked it can't even be imported
    from specollama.server.embedded.serve import ServeSettings, run

    settings = ServeSettings(num_ctx=num_ctx, parallel=parallel, threads=threads)
    signals.leave_to_server()
    run(model or [], host=host, port=port, settings=settings)
