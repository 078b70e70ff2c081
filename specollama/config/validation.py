"""Validates a table of the configuration file. Its first fault names the place where the value was written."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, NoReturn, TypeVar

from pydantic import ValidationError
from pydantic_core import ErrorDetails

from specollama.config.endpoints import REDACTED, redacted
from specollama.config.schema import SECRET, EndpointTable, Table
from specollama.errors import ConfigError, UsageError, one_line

T = TypeVar("T", bound="Table")


@dataclass(frozen=True, slots=True)
class ConfigLocation:
    """The place of a setting: a path of keys in a file, or without a file a flag of the command line."""

    file: Path | None = None
    keys: tuple[str, ...] = ()

    def with_keys(self, *keys: str) -> ConfigLocation:
        return replace(self, keys=(*self.keys, *keys))

    def __str__(self) -> str:
        if self.file is None:
            return "--" + self.keys[-1].replace("_", "-")
        return f"{self.file}: {dotted_key(*self.keys)}" if self.keys else str(self.file)

    def fail(self, words: str, value: object = None) -> NoReturn:
        """Raise ConfigError, for a flag UsageError. A value that may be a secret is left out."""
        given = "" if value is None else f" = {REDACTED if self._secret else redacted(value)}"
        error = UsageError if self.file is None else ConfigError
        raise error(one_line(f"{self}{given}: {words}")) from None

    @property
    def _secret(self) -> bool:
        """Whether the value may be a token, as anything under an unknown key of an endpoint may."""
        unknown = self.keys[:1] == ("endpoints",) and not {*self.keys[2:]} <= {*EndpointTable.model_fields}
        return unknown or bool(self.keys and SECRET.search(self.keys[-1]))


def dotted_key(*keys: str) -> str:
    """Return a path of keys as TOML writes it, with quotes where a name needs them."""
    return ".".join(key if re.fullmatch(r"[A-Za-z0-9_-]+", key) else redacted(key) for key in keys)


WORDS = {
    "bool_type": "true or false",
    "dict_type": "a table",
    "enum": "one of {names}",
    "finite_number": "a number",
    "float_type": "a number",
    "greater_than": "above {gt:g}",
    "greater_than_equal": "{ge:g} or more",
    "int_from_float": "a whole number",
    "int_type": "a whole number",
    "less_than_equal": "{le:g} or less",
    "list_type": "a list, in brackets: [...]",
    "literal_error": "{quoted}",
    "string_too_short": "a text that isn't empty",
    "string_type": "a text",
}
"""What a message says after "must be", by pydantic's error types (docs.pydantic.dev, "Validation Errors")."""


def validate_table(table: type[T], data: Mapping[str, Any], place: ConfigLocation) -> T:
    """Return `data` as a table. Raises ConfigError, for flags UsageError, naming its first fault and the place."""
    try:
        return table.model_validate(data)
    except ValidationError as error:
        faults = [(*_as_written(fault, data), fault) for fault in error.errors()]
    keys, value, first = faults[0]
    own = first.get("ctx", {}).get("words")
    words = own or f"must be {_alternatives(fault for at, _, fault in faults if at == keys)}"
    place.with_keys(*keys).fail(words, value)


def _alternatives(faults: Iterable[ErrorDetails]) -> str:
    """What one place may hold: pydantic has a fault for each type that the place may have."""
    return " or ".join(dict.fromkeys(_words(fault) for fault in faults))


def _words(fault: ErrorDetails) -> str:
    context = fault.get("ctx", {})
    expected = str(context.get("expected", ""))  # as "'a', 'b' or 'c'"
    names = expected.replace("'", "").replace(" or ", ", ")
    return WORDS[fault["type"]].format(**context, names=names, quoted=expected.replace("'", '"'))


def _as_written(fault: ErrorDetails, data: Any) -> tuple[list[str], Any]:
    """The path of keys, and what is there; None for a key that is missing.

    A single entry may stand for a list of one. Where a value may be of several types, pydantic's last key is a type.
    """
    path, value = list[str](), data
    for step in fault["loc"]:
        if (isinstance(value, list) and isinstance(step, int)) or (isinstance(value, Mapping) and step in value):
            path.append(str(step))
            value = value[step]  # type: ignore[index]
    if (key := fault.get("ctx", {}).get("key")) is None:
        return path, value
    return [*path, key], value.get(key) if isinstance(value, Mapping) else None
