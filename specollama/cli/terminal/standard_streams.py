"""Standard input and output as terminals and pipes really are: text in other encodings, a pipe that nobody reads."""

from __future__ import annotations

import io
import os
import sys


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


def decode_terminal_text(text: str) -> str:
    """Read as UTF-8 what Python couldn't decode in the terminal's encoding."""
    return text.encode("utf-8", "surrogateescape").decode("utf-8", "replace")
