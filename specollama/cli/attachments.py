"""Images on the command line."""

from __future__ import annotations

from base64 import b64encode
from pathlib import Path

from specollama.errors import UsageError


def encoded(file: Path) -> str:
    """An image file as Ollama takes it: base64. Raises UsageError when it can't be read."""
    try:
        return b64encode(file.read_bytes()).decode()
    except OSError as error:
        raise UsageError(f"--image {file}: {error.strerror or error}") from error
