"""What a JSON schema may count up to: llama.cpp writes a grammar with a rule for each repetition, in this process."""

from __future__ import annotations

import re
from typing import Any

from specollama.errors import ApiError

MOST_REPEATS = 20_000
"""Of all items, properties and pattern repetitions of a request together: about 40 MB."""

MOST_CHARACTERS = 200_000
"""Of all lengths of texts together, which cost next to nothing."""

_ITEMS = ("minItems", "maxItems", "minProperties", "maxProperties")
_LENGTHS = ("minLength", "maxLength")
_REPETITION = re.compile(r"\{\s*(\d*)\s*(?:,\s*(\d*)\s*)?\}")


def check_schemas(*schemas: Any) -> None:
    """Raises ApiError 400 for schemas (`format`, `tools`) that count further than that."""
    repeats = characters = 0
    left: list[Any] = list(schemas)
    while left:  # not by recursion: a client chooses the depth
        each = left.pop()
        if isinstance(each, list):
            left += each
        elif isinstance(each, dict):
            left += each.values()
            repeats += sum(_count(each.get(name)) for name in _ITEMS) + _pattern_repeats(each.get("pattern"))
            characters += sum(_count(each.get(name)) for name in _LENGTHS)
    for name, found, most in (("repetitions", repeats, MOST_REPEATS), ("characters", characters, MOST_CHARACTERS)):
        if found > most:
            raise ApiError(400, f"the schema asks for up to {found} {name}: this server takes {most}")


def _count(value: Any) -> int:
    """A number that isn't one is llama.cpp's to refuse."""
    return int(value) if isinstance(value, int | float) and not isinstance(value, bool) and value > 0 else 0


def _pattern_repeats(pattern: Any) -> int:
    if not isinstance(pattern, str):
        return 0
    return sum(int(number[:12]) for found in _REPETITION.finditer(pattern) for number in found.groups() if number)
