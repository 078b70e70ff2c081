"""Embedded servers as processes of their own, one for each model, as a user would start them."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def serving(model: str) -> Iterator[str]:
    """`specollama embedded serve` with one model of the default pair, on a free port; gives its URL."""
    command = [sys.executable, "-m", "specollama", "embedded", "serve", "--model", model, "--port", "0"]
    process = subprocess.Popen(
        [*command, "--num-ctx", "512", "--parallel", "8"],
        stderr=subprocess.PIPE,
        text=True,
        env={**os.environ, "PYTHONUNBUFFERED": "1", "NO_COLOR": "1"},
    )
    assert process.stderr
    try:
        with process.stderr as said:
            yield _url(said)
    finally:
        process.terminate()
        process.wait(timeout=60)


def _url(said: Iterator[str]) -> str:
    lines = []
    for line in said:
        lines.append(line)
        if found := re.search(r"on (http://\S+)", line):
            return found.group(1)
    raise AssertionError(f"the server didn't start: {''.join(lines)}")
