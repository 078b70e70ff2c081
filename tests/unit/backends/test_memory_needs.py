"""The memory that a model is reckoned to take."""

from __future__ import annotations

from pathlib import Path

import gguf
import pytest

from specollama.backends.llama_cpp.memory_needs import (
    _BLOCK_BYTES,
    first_part,
    kv_cache_bytes,
    weight_bytes,
    weight_files,
)

QWEN3_06B = {"layers": 28, "kv_heads": 8, "key_length": 128, "value_length": 128}  # heads twice as wide as 1024 / 16
QWEN25_05B = {"layers": 24, "kv_heads": 2, "key_length": 64, "value_length": 64}


@pytest.mark.parametrize(
    ("model", "tokens", "kv_type", "mib"),
    [
        (QWEN3_06B, 4096, "f16", 448),  # as llama.cpp prints it
        (QWEN3_06B, 4096, "q8_0", 238),
        (QWEN3_06B, 4096, "q4_0", 126),
        (QWEN25_05B, 4096, "f16", 48),
        (QWEN25_05B, 4096, "F32", 96),
    ],
)
def test_a_cache_takes_what_its_heads_and_its_type_say(
    model: dict[str, int], tokens: int, kv_type: str, mib: int
) -> None:
    assert kv_cache_bytes(**model, tokens=tokens, kv_type=kv_type) == mib * 2**20


def test_the_types_take_what_the_gguf_package_says() -> None:
    sizes = gguf.GGML_QUANT_SIZES
    assert {name: sizes[gguf.GGMLQuantizationType[name.upper()]] for name in _BLOCK_BYTES} == _BLOCK_BYTES


def test_all_parts_of_a_split_model_count(tmp_path: Path) -> None:
    names = [f"m-{part:05}-of-00003.gguf" for part in (1, 2, 3)]
    for size, name in enumerate([*names, "m.gguf", "m-00001-of-00002.gguf"], 1):
        (tmp_path / name).write_bytes(b"x" * size)
    assert weight_bytes(tmp_path / names[0]) == 6
    assert weight_bytes(tmp_path / "m.gguf") == 4
    assert [part.name for part in weight_files(tmp_path / "m-00001-of-00002.gguf")] == ["m-00001-of-00002.gguf"]


@pytest.mark.parametrize(
    ("name", "first"),
    [("m-00002-of-00003.gguf", "m-00001-of-00003.gguf"), ("m-00001-of-00003.gguf", None), ("m.gguf", None)],
)
def test_a_later_part_names_the_first(name: str, first: str | None) -> None:
    assert first_part(Path(name)) == (Path(first) if first else None)
