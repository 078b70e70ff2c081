"""Files that lie about what is in them: one line, and no traceback."""

from __future__ import annotations

import json
import struct
from pathlib import Path

import pytest

from specollama.backends.llama_cpp import profiling
from specollama.backends.llama_cpp.chat_template import render_chat
from specollama.backends.llama_cpp.gguf_metadata import read_header
from specollama.errors import RunError, UsageError

ARRAY, STRING, UINT64 = 9, 8, 10
HEADS = b"GGUF" + struct.pack("<IQQ", 3, 0, 1) + struct.pack("<Q", 1) + b"k"


@pytest.mark.parametrize(
    "rest",
    [
        struct.pack("<I", ARRAY) + struct.pack("<IQ", ARRAY, 1) * 100_000,
        struct.pack("<IIQ", ARRAY, UINT64, 2**62),
        struct.pack("<IIQ", ARRAY, STRING, 2**62),
        struct.pack("<IQ", STRING, 2**62),
        struct.pack("<IQ", STRING, 2**63),
        struct.pack("<I", 99),
        b"",
    ],
    ids=["nested arrays", "long array", "many texts", "long text", "longer text", "unknown type", "cut off"],
)
def test_a_gguf_that_lies_about_itself_is_damaged(tmp_path: Path, rest: bytes) -> None:
    file = tmp_path / "m.gguf"
    file.write_bytes(HEADS + rest)
    with pytest.raises(UsageError, match=r"m\.gguf is a damaged GGUF file$"):
        read_header(file)


@pytest.mark.parametrize(
    ("template", "why"),
    [
        ("{{ 1 / 0 }}", "division by zero"),
        ("{{ messages[0].content.none.at.all }}", "no attribute"),
        ("{{ [][7:].pop() }}", "pop"),
        ("{% for a in range(10 ** 9) %}{% endfor %}", "range"),
        ("{% macro f() %}{{ f() }}{% endmacro %}{{ f() }}", "recursion"),
        ("{% if %}", "unexpected|Expected"),
        ("{{ raise_exception('no\nsystem role') }}", r"no\\nsystem role"),
    ],
)
def test_a_chat_template_that_fails_is_one_line(template: str, why: str) -> None:
    with pytest.raises(RunError, match=why) as fault:
        render_chat(template, [{"role": "user", "content": "Hi."}], begin="", end="")
    assert str(fault.value).startswith("the model's own chat template refuses this chat: ")
    assert "\n" not in str(fault.value)


@pytest.mark.parametrize(
    "model",
    [
        {"passes": {"1": 0.0}, "reading": 0.1},
        {"passes": {"1": 0.1, "8": -1}, "reading": 0.1},
        {"passes": {"0": 0.1}, "reading": 0.1},
        {"passes": {}, "reading": 0.1},
        {"passes": {"1": 0.1}, "reading": -1},
    ],
)
def test_kept_timings_that_no_model_can_have_are_measured_anew(tmp_path: Path, model: dict[str, object]) -> None:
    file = tmp_path / "planner.json"
    file.write_text(json.dumps({"models": {"m": model}}))
    assert profiling.load(file) == (profiling.SavedProfile(), f"{file} is damaged: measured anew")


@pytest.mark.parametrize("counts", ["hits", "trials"])
def test_kept_counts_below_zero_are_measured_anew(tmp_path: Path, counts: str) -> None:
    bins = profiling.CONFIDENCE_BINS
    kept = {"hits": [0.0] * bins, "trials": [0.0] * bins} | {counts: [-1.0] * bins}
    file = tmp_path / "planner.json"
    file.write_text(json.dumps({"drafters": {"d": kept}}))
    assert profiling.load(file)[1] == f"{file} is damaged: measured anew"
