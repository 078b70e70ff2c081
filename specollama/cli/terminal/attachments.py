"""Images, on the command line and in a chat."""

from __future__ import annotations

from base64 import b64encode
from collections.abc import Iterable
from pathlib import Path

from specollama.errors import UsageError, one_line

LARGEST_IMAGE = 100 * 2**20  # bytes
_FIRST_BYTES = (b"\x89PNG\r\n\x1a\n", b"\xff\xd8\xff", b"GIF8", b"BM")
_RIFF, _WEBP = b"RIFF", b"WEBP"  # the latter after four bytes of length


def load_attachments(files: Iterable[Path] | None) -> list[str]:
    """What `--image` gave, in base64. Raises UsageError as `encode_image` does, and for what isn't an image."""
    try:
        return [encode_image(file, checked=True) for file in files or []]
    except UsageError as error:
        raise UsageError(f"--image {error}") from error


def encode_image(file: Path, *, checked: bool = False) -> str:
    """An image file as Ollama takes it: base64. Raises UsageError when it can't be read, or is larger than any image.

    `checked`: also when its first bytes aren't an image's; a name that ends as an image's does isn't asked for more.
    What isn't a plain file has no size beforehand, and may not end: no more is read than an image may have.
    """
    try:
        with file.open("rb") as opened:
            image = opened.read(LARGEST_IMAGE + 1)
    except OSError as error:
        raise UsageError(one_line(f"{file}: {error.strerror or error}")) from error
    if len(image) > LARGEST_IMAGE:
        raise UsageError(one_line(f"{file}: larger than {LARGEST_IMAGE // 2**20} MB"))
    if checked and not _is_image(image):
        raise UsageError(one_line(f"{file}: isn't an image (PNG, JPEG, WebP, GIF or BMP)"))
    return b64encode(image).decode()


def _is_image(content: bytes) -> bool:
    return content.startswith(_FIRST_BYTES) or (content[:4] == _RIFF and content[8:12] == _WEBP)
