"""Files that hold what somebody said to a model."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

from specollama.config.os_errors import naming_file
from specollama.errors import UsageError, one_line

Overwrite = Callable[[Path], bool]
"""Whether a file that is there may be written over."""


def write_private(file: Path, text: str) -> None:
    """Write it in place of what the file had. A new file is its owner's alone; one that is there keeps its mode.

    Raises OSError.
    """
    _put(os.open(file, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600), file, text)


def write_new(file: Path, text: str, overwrite: Overwrite, *, force: str) -> None:
    """The same, but a file that is there is written over only where `overwrite` says so. Devices and pipes are asked
    about nothing. `force`: what the user gives to have it written over.

    Raises UsageError for a file that stays as it is, OSError.
    """
    try:
        descriptor = os.open(file, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    except FileExistsError:
        if (file.is_file() or file.is_symlink()) and not overwrite(file):
            raise UsageError(one_line(f"{file}: exists; name another file, or {force} writes over it")) from None
        write_private(file, text)
    else:
        _put(descriptor, file, text)


def _put(descriptor: int, file: Path, text: str) -> None:
    with naming_file(file), open(descriptor, "w", encoding="utf-8") as out:
        out.write(text)
