"""Replaces a file as a whole or not at all."""

from __future__ import annotations

import glob
import os
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from specollama.config.os_errors import naming_file

try:
    import fcntl
except ImportError:  # Windows
    fcntl = None  # type: ignore[assignment]


_SUFFIX = ".scratch"  # tells these files from others that begin alike, as editors' swap files


@contextmanager
def replacement(file: Path) -> Iterator[Path]:
    """Yield a new, empty file beside `file` that takes its place when the block ends, and is deleted when it fails.

    Only the user can read the new file (mode 0600). It is on the disk before it takes the place, and what killed
    processes left of earlier ones is deleted. Two processes may replace a file at once: the later one wins. Raises
    OSError, also where the folder is missing.
    """
    _delete_abandoned(file)
    handle, scratch = _locked_scratch(file)
    try:
        with naming_file(file):
            yield scratch
            sync(scratch)  # by its name: the block may have put another file there
            scratch.replace(file)
            sync(file.parent)
    finally:
        os.close(handle)
        scratch.unlink(missing_ok=True)


def _locked_scratch(file: Path) -> tuple[int, Path]:
    """A new file that stays locked as long as the descriptor is open, so that its owner is known to live."""
    while True:
        handle, name = tempfile.mkstemp(dir=file.parent, prefix=f".{file.name}.", suffix=_SUFFIX)
        if fcntl is not None:
            fcntl.flock(handle, fcntl.LOCK_EX)
        if os.fstat(handle).st_nlink:  # else another process deleted it before it was locked
            return handle, Path(name)
        os.close(handle)


def _delete_abandoned(file: Path) -> None:
    """Delete scratch files of this file that no living process has locked."""
    if fcntl is None:
        return
    for left in file.parent.glob(f".{glob.escape(file.name)}.*{_SUFFIX}"):
        try:
            handle = os.open(left, os.O_RDWR | os.O_NOFOLLOW | os.O_NONBLOCK)
        except OSError:  # somebody else's, a link, or gone by now
            continue
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
            left.unlink(missing_ok=True)
        except OSError:  # it is being written
            continue
        finally:
            os.close(handle)


def sync(path: Path) -> None:
    """Bring a file, or the names in a folder, to the disk. (Windows has no such call for a folder.)"""
    if os.name == "posix":
        handle = os.open(path, os.O_RDONLY)
        try:
            os.fsync(handle)
        finally:
            os.close(handle)
