"""`specollama trust`: let a configuration file of a working directory be used."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from specollama.cli.terminal import output
from specollama.config import trust as trusting
from specollama.config.loading import LOCAL_NAME
from specollama.errors import one_line


def trust(
    file: Annotated[
        Path, typer.Argument(metavar="FILE", show_default=f"./{LOCAL_NAME}", help="A configuration file.")
    ] = Path(LOCAL_NAME),
    revoke: Annotated[bool, typer.Option("--revoke", help="Trust it no longer.")] = False,
) -> None:
    """Let the specollama.toml of a folder be used there, as it is now. Read it first.

    It decides which servers get your prompts and tokens. A changed file is asked about again.
    """
    file = file / LOCAL_NAME if file.is_dir() else file
    if not revoke:
        trusting.trust(file)
        told = "trusted as it is now"
    else:
        told = "not trusted any more" if trusting.revoke(file) else "wasn't trusted"
    output.stderr().out(one_line(f"{file}: {told}"))
