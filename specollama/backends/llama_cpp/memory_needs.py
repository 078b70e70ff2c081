"""The memory that a model takes: the bytes of its files, and of its KV cache."""

from __future__ import annotations

import re
from pathlib import Path

_PART = re.compile(r"(?P<name>.*)-(?P<part>\d{5})-of-(?P<count>\d{5})\.gguf")  # as gguf-split names them
_BLOCK_BYTES = {"f32": (1, 4), "f16": (1, 2), "bf16": (1, 2)} | {
    "q8_0": (32, 34),
    "q5_1": (32, 24),
    "q5_0": (32, 22),
    "q4_1": (32, 20),
    "q4_0": (32, 18),
    "iq4_nl": (32, 18),
}
"""Values in a block and its bytes, by the types that llama.cpp can give a KV cache."""


def kv_cache_bytes(*, layers: int, kv_heads: int, key_length: int, value_length: int, tokens: int, kv_type: str) -> int:
    """Bytes of a KV cache of so many tokens. `key_length`, `value_length`: numbers in a head's key and value.

    A type that isn't known counts as f16.
    """
    values, size = _BLOCK_BYTES.get(kv_type.lower(), (1, 2))
    numbers = layers * kv_heads * (key_length + value_length) * tokens
    return -(-numbers * size // values)


def weight_files(path: Path) -> list[Path]:
    """The files of a model: all parts of a split one, as far as they are there, or the file alone."""
    if not (found := _PART.fullmatch(path.name)):
        return [path]
    parts = (f"{found['name']}-{part:05}-of-{found['count']}.gguf" for part in range(1, int(found["count"]) + 1))
    return [part for part in map(path.with_name, parts) if part.is_file()]


def weight_bytes(path: Path) -> int:
    """Bytes of a model's files. Raises OSError."""
    return sum(part.stat().st_size for part in weight_files(path))


def first_part(path: Path) -> Path | None:
    """The first part of a split model of which the file is a later one; None for any other file."""
    found = _PART.fullmatch(path.name)
    if not found or int(found["part"]) == 1:
        return None
    return path.with_name(f"{found['name']}-{1:05}-of-{found['count']}.gguf")
