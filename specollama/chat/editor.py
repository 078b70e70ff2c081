"""A text in the user's own editor."""

from __future__ import annotations

import os
import shlex
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from tempfile import TemporaryDirectory

from specollama.chat.commands import CommandFault


def edited(text: str, environ: Mapping[str, str] = os.environ) -> str:
    """The text as it is when the editor (`$VISUAL`, else `$EDITOR`) has ended. Raises CommandFault where it fails."""
    fallback = "notepad" if sys.platform == "win32" else "vi"
    command = shlex.split(environ.get("VISUAL") or environ.get("EDITOR") or fallback)
    with TemporaryDirectory(prefix="specollama-") as folder:
        file = Path(folder) / "message.md"
        file.write_text(text, encoding="utf-8")
        try:
            code = subprocess.run([*command, str(file)], check=False).returncode
        except OSError as error:
            raise CommandFault(f"{command[0]}: {error.strerror or error}; $EDITOR says which editor to use") from error
        if code:
            raise CommandFault(f"{command[0]} ended with {code}: nothing is sent")
        return file.read_text(encoding="utf-8", errors="replace")
