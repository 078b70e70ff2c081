"""Standard input and output as terminals and pipes really are: text in other encodings, a pipe that nobody reads."""

from __future__ import annotations

import io
import os
import sys

from specollama.errors import UsageError


def allow_any_text() -> None:
    """A terminal whose encoding lacks a character shows a question mark in its place."""
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="replace")


def discard_stdout() -> None:
    """Drop what stdout still holds: Python would fail at it once more at exit."""
    if sys.stdout is not None:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def flush_or_discard() -> None:
    """Write out what stdout still holds, or drop it where that fails, as on a terminal that was closed."""
    try:
        if sys.stdout is not None:
            sys.stdout.flush()
    except (OSError, ValueError):
        discard_stdout()


def read_piped_text() -> str:
    """All of standard input as `piped_text` reads it; "" where there is none. Raises UsageError."""
    if sys.stdin is None:
        return ""
    read_any_bytes()
    return piped_text(sys.stdin.read())


def read_any_bytes() -> None:
    """Let bytes of standard input that are no text come through: `piped_text` says what is wrong with them."""
    if isinstance(sys.stdin, io.TextIOWrapper):
        sys.stdin.reconfigure(errors="surrogateescape")


def piped_text(text: str) -> str:
    """A piped text without a byte order mark, its lines ended by \\n alone.

    Raises UsageError where it isn't UTF-8: a model would get something else than was meant.
    """
    try:
        decoded = text.encode("utf-8", "surrogateescape").decode("utf-8")
    except UnicodeDecodeError as error:
        raise UsageError(
            f"standard input isn't UTF-8 (byte 0x{error.object[error.start]:02x} at {error.start}): convert it, "
            "as `iconv -f latin1 -t utf-8` does"
        ) from None
    return decoded.removeprefix("\ufeff").replace("\r\n", "\n")


def decode_terminal_text(text: str) -> str:
    """Read as UTF-8 what Python couldn't decode in the terminal's encoding."""
    return text.encode("utf-8", "surrogateescape").decode("utf-8", "replace")
