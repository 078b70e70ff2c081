"""Replaces a file as a whole or not at all."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path


@contextmanager
def replacement(file: Path) -> Iterator[Path]:
    """Yield a new, empty file beside `file` that takes its place when the block ends, and is deleted when it fails.

    Only the user can read the new file (mode 0600). Two processes may replace a file at once: the later one wins.
    Raises OSError, also where the folder is missing.
    """
    handle, name = tempfile.mkstemp(dir=file.parent, prefix=f".{file.name}.")
    os.close(handle)
    scratch = Path(name)
    try:
        yield scratch
        scratch.replace(file)
    finally:
        scratch.unlink(missing_ok=True)
