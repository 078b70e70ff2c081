"""Chat templates that fail, and kept timings that can't be right: one line, and no traceback."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from specollama.backends.llama_cpp import profiling
from specollama.backends.llama_cpp.chat_template import render_chat
from specollama.errors import RunError


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
