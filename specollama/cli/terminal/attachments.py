"""Images, on the command line and in a chat."""

from __future__ import annotations

from base64 import b64encode
from collections.abc import Iterable
from pathlib import Path

from specollama.errors import UsageError, one_line

LARGEST_IMAGE = 100 * 2**20  # bytes


def load_attachments(files: Iterable[Path] | None) -> list[str]:
    """What `--image` gave, in base64. Raises UsageError as `encode_image` does, naming the flag."""
    try:
        return [encode_image(file) for file in files or []]
    except UsageError as error:
        raise UsageError(f"--image {error}") from error


def encode_image(file: Path) -> str:
    """An image file as Ollama takes it: base64. Raises UsageError when it can't be read, or is larger than any image.

    What isn't a plain file has no size beforehand, and may not end: no more is read than an image may have.
    """
    try:
        with file.open("rb") as opened:
            image = opened.read(LARGEST_IMAGE + 1)
    except OSError as error:
        raise UsageError(one_line(f"{file}: {error.strerror or error}")) from error
    if len(image) > LARGEST_IMAGE:
        raise UsageError(one_line(f"{file}: larger than {LARGEST_IMAGE // 2**20} MB"))
    return b64encode(image).decode()
