"""Standard streams: text in any encoding goes in and out without an exception."""

from __future__ import annotations

import io
import os
import sys


def allow_any_text() -> None:
    """Let stdout and stderr write a question mark for a character that the terminal's encoding lacks."""
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="replace")


def read_any_bytes() -> None:
    """Let stdin pass bytes that aren't valid text, as surrogates; `decode_terminal_text` turns them into text."""
    if isinstance(sys.stdin, io.TextIOWrapper):
        sys.stdin.reconfigure(errors="surrogateescape")


def decode_terminal_text(text: str) -> str:
    """The text with bytes that Python couldn't decode in the terminal's encoding read as UTF-8."""
    return text.encode("utf-8", "surrogateescape").decode("utf-8", "replace")


def discard_stdout() -> None:
    """Drop what stdout still buffers: Python would fail to write it once more at exit."""
    if sys.stdout is not None:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
