"""A table of the file is validated; its first fault names the place where it was written."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, NoReturn, TypeVar

from pydantic import ValidationError

from specollama.config.endpoints import REDACTED, redacted
from specollama.config.schema import SECRET, EndpointTable, Table
from specollama.errors import ConfigError, UsageError, one_line

T = TypeVar("T", bound="Table")


@dataclass(frozen=True, slots=True)
class ConfigLocation:
    """Where a setting was written: a path of keys in a file, or (no file) a flag of the command line."""

    file: Path | None = None
    keys: tuple[str, ...] = ()

    def with_keys(self, *keys: str) -> ConfigLocation:
        return replace(self, keys=(*self.keys, *keys))

    def __str__(self) -> str:
        if self.file is None:
            return "--" + self.keys[-1].replace("_", "-")
        return f"{self.file}: {dotted_key(*self.keys)}" if self.keys else str(self.file)

    def fail(self, words: str, value: object = None) -> NoReturn:
        """Raises ConfigError (for a flag UsageError). A value that may be a secret is left out."""
        given = "" if value is None else f" = {REDACTED if self._secret else redacted(value)}"
        error = UsageError if self.file is None else ConfigError
        raise error(one_line(f"{self}{given}: {words}")) from None

    @property
    def _secret(self) -> bool:
        """Whether the value may be a token; so may anything under a key that an endpoint doesn't know."""
        unknown = self.keys[:1] == ("endpoints",) and not {*self.keys[2:]} <= {*EndpointTable.model_fields}
        return unknown or bool(self.keys and SECRET.search(self.keys[-1]))


def dotted_key(*keys: str) -> str:
    """A path of keys as TOML writes it: a name with a dot in it is quoted."""
    return ".".join(key if re.fullmatch(r"[A-Za-z0-9_-]+", key) else redacted(key) for key in keys)


def validate_table(table: type[T], data: Mapping[str, Any], place: ConfigLocation) -> T:
    """The table; its first fault is raised as from the place."""
    try:
        return table.model_validate(data)
    except ValidationError as error:
        first = error.errors()[0]
    context = first.get("ctx", {})
    keys, value = _as_written([key for key in (*first["loc"], context.get("key")) if key is not None], data)
    place.with_keys(*keys).fail(context.get("words", first["msg"]), value)


def _as_written(keys: Iterable[str | int], data: Any) -> tuple[list[str], Any]:
    """The path of keys, and what is there. A single entry may stand for a list of one."""
    path, value = list[str](), data
    for key in keys:
        if isinstance(key, int) and not isinstance(value, list):
            continue
        path.append(str(key))
        known = isinstance(value, list) or (isinstance(value, Mapping) and key in value)
        value = value[key] if known else None
    return path, value
