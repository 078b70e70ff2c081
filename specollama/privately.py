"""Files that hold what somebody said to a model."""

from __future__ import annotations

import os
from pathlib import Path


def write(file: Path, text: str) -> None:
    """Write it in place of what the file had. A new file is its owner's alone; one that is there keeps its mode.

    Raises OSError.
    """
    descriptor = os.open(file, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
    with open(descriptor, "w", encoding="utf-8") as out:
        out.write(text)
