"""Opens what a user names as a file without waiting for it: a FIFO or a device may give nothing for ever, or no end."""

from __future__ import annotations

import errno
import os
import stat
from pathlib import Path
from typing import IO

_AT_ONCE = getattr(os, "O_NONBLOCK", 0) | getattr(os, "O_NOCTTY", 0)
_NO_LINK = getattr(os, "O_NOFOLLOW", 0)


class NotPlainFile(OSError):
    """A FIFO or a device; without `follow_links` also what the system refuses to open as a link or a socket."""


def open_plain(path: Path, mode: str = "rb", *, follow_links: bool = True) -> IO[bytes]:
    """Open a file as `open` does. A new one is its owner's alone (mode 0600).

    Raises NotPlainFile, IsADirectoryError, and other OSErrors.
    """

    def opened_at_once(name: str, flags: int) -> int:
        return os.open(name, flags | _AT_ONCE | (0 if follow_links else _NO_LINK), 0o600)

    try:
        file: IO[bytes] = open(path, mode, opener=opened_at_once)  # noqa: SIM115  (the caller closes it)
    except OSError as error:
        if not follow_links and error.errno in (errno.ELOOP, errno.ENXIO):
            raise _not_plain(path) from None
        raise
    if stat.S_ISREG(os.fstat(file.fileno()).st_mode):
        return file
    file.close()
    raise _not_plain(path)


def _not_plain(path: Path) -> NotPlainFile:
    return NotPlainFile(errno.EINVAL, "it isn't a plain file", str(path))
