"""Parses TOML. A fault is one line that names its place."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path
from typing import Any

from specollama.errors import ConfigError, one_line


def parsed(path: Path, raw: bytes) -> dict[str, Any]:
    """Return the data in the bytes of a TOML file. Raises ConfigError naming the file, the line and the column."""
    try:
        text = raw.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        words = f"not UTF-8 text, at byte {error.start}; save it as UTF-8"
        raise ConfigError(one_line(f"{path}: {words}")) from None
    try:
        return tomllib.loads(text)
    except (ValueError, RecursionError) as error:
        raise ConfigError(one_line(f"{path}: {_syntax(str(error), text)}")) from None


def _syntax(fault: str, text: str) -> str:
    """Put the place first; `tomllib` ends with "(at line 1, column 5)" or "(at end of document)"."""
    if place := re.search(r" \(at line (\d+), column (\d+)\)$", fault):
        return f"line {place[1]}, column {place[2]}: not valid TOML: {fault[: place.start()]}"
    lines = text.split("\n")
    fault = fault.removesuffix(" (at end of document)")
    return f"line {len(lines)}, column {len(lines[-1]) + 1}: not valid TOML: {fault}"
