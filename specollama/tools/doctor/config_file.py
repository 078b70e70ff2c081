"""Edit the configuration file; comments, order and formatting of the other keys stay."""

from __future__ import annotations

import tomllib
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import tomlkit
from tomlkit.exceptions import TOMLKitError

from specollama.config.atomic_file import replacement
from specollama.config.loading import Config
from specollama.config.schema import ConfigTable
from specollama.config.validation import ConfigLocation, validate_table
from specollama.errors import ConfigError, RunError, one_line
from specollama.tools.doctor.suggestions import Suggestion


def set_pair_keys(text: str, pair: str, keys: Mapping[str, Any]) -> str:
    """The file's text with these keys of a pair set."""
    document = tomlkit.parse(text)
    table: Any = document["pairs"]
    for key, value in keys.items():
        table[pair][key] = value
    return tomlkit.dumps(document)


def add_pairs(text: str, pairs: Sequence[Suggestion]) -> tuple[str, list[str]]:
    """The file's text with a table for each of the pairs that isn't there under its name; and the names added."""
    document = tomlkit.parse(text)
    known: Any = document.setdefault("pairs", tomlkit.table(is_super_table=True))
    added = list[str]()
    for pair in pairs:
        if pair.name not in known:
            known[pair.name] = _table(pair)
            added.append(pair.name)
    return tomlkit.dumps(document), added


def _table(pair: Suggestion) -> Any:
    table = tomlkit.table()
    for role, model in (("target", pair.target), ("draft", pair.draft)):
        inline = tomlkit.inline_table()
        inline["model"] = model.name
        if model.endpoint:
            inline["endpoint"] = model.endpoint
        table[role] = inline
    return table


def read_config(path: Path) -> str:
    """The file's text; "" where there is none. Raises ConfigError where it can't be read."""
    try:
        return path.read_bytes().decode("utf-8-sig")
    except FileNotFoundError:
        return ""
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(one_line(f"{path}: can't be read: {getattr(error, 'strerror', None) or error}")) from error


def write_config(path: Path, text: str) -> None:
    """Replace the file atomically, after checking that the text is a valid configuration.

    Raises ConfigError where it isn't, RunError where it can't be written.
    """
    try:
        Config(path, validate_table(ConfigTable, tomllib.loads(text), ConfigLocation(path))).validate()
    except (tomllib.TOMLDecodeError, TOMLKitError) as error:
        raise ConfigError(one_line(f"{path}: the changes don't fit into it: {error}")) from error
    real = path.resolve()  # a link stays one
    try:
        with replacement(real) as scratch:
            scratch.write_bytes(text.encode())
            scratch.chmod(real.stat().st_mode if real.exists() else 0o644)
    except OSError as error:
        raise RunError(one_line(f"{path}: can't be written: {error.strerror or error}")) from error
