"""A text edited in the user's own editor."""

from __future__ import annotations

import shlex
import shutil
import subprocess
import tempfile
from collections.abc import Mapping
from pathlib import Path

from specollama.errors import RunError, UsageError, one_line

_COMMON = ("nano", "vim", "vi")


def edit_text(text: str, environ: Mapping[str, str]) -> str:
    """The text as the editor of $VISUAL or $EDITOR left it, without a line end that it only added.

    Raises UsageError when there is no editor, RunError when it fails.
    """
    command = _editor(environ)
    with tempfile.TemporaryDirectory(prefix="specollama-") as folder:
        file = Path(folder) / "reply.md"
        file.write_bytes(text.encode())
        try:
            ended = subprocess.run([*command, str(file)], check=False)
            changed = file.read_bytes().decode()
        except OSError as error:
            raise RunError(one_line(f"{command[0]}: {error.strerror or error}; set $EDITOR")) from error
        except UnicodeDecodeError as error:
            raise RunError(f"what {command[0]} wrote isn't UTF-8; nothing was changed") from error
    if ended.returncode:
        raise RunError(one_line(f"{command[0]} ended with {ended.returncode}; nothing was changed"))
    return changed if text.endswith("\n") else changed.removesuffix("\n")


def _editor(environ: Mapping[str, str]) -> list[str]:
    given = environ.get("VISUAL") or environ.get("EDITOR") or next(filter(shutil.which, _COMMON), "")
    try:
        command = shlex.split(given)
    except ValueError as error:
        raise UsageError(one_line(f"$EDITOR = {given}: {error}")) from error
    if not command:
        raise UsageError("there is no editor: set $EDITOR")
    return command
