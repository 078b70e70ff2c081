"""The name of the file in errors of writing: the operating system tells it only where a file is opened."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path


@contextmanager
def naming_file(file: Path) -> Iterator[None]:
    """An OSError of the block that names no file gets this one's name, as `No space left on device` has none."""
    try:
        yield
    except OSError as error:
        if error.filename is None:
            error.filename = str(file)
        raise
