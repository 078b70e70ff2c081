"""What was measured is kept; a file that isn't what was written is ignored, and said so."""

from __future__ import annotations

from pathlib import Path
from time import time

import pytest

from specollama.backends.llama_cpp.model import LoadOptions
from specollama.backends.llama_cpp.profiling import (
    PASS_SIZES,
    CalibrationCounts,
    ModelProfile,
    SavedProfile,
    load,
    model_key,
    profile_model,
    save,
)
from specollama.pairs.routes.local_models import LocalModels
from specollama.spec_decode.calibration import CONFIDENCE_BINS

KEPT = SavedProfile(
    models={"m": ModelProfile(passes={1: 0.07, 8: 0.16}, reading=0.004)},
    drafters={"greedy 0 draft": CalibrationCounts(hits=[1.0] * CONFIDENCE_BINS, trials=[2.0] * CONFIDENCE_BINS)},
)


def test_what_is_kept_is_recalled(tmp_path: Path) -> None:
    file = tmp_path / "deep" / "pair.json"
    assert load(file) == (SavedProfile(), "")
    assert save(KEPT, file) == ""
    assert load(file) == (KEPT, "")
    assert list(file.parent.iterdir()) == [file]


def test_doubtful_costs_are_left_out_when_their_time_is_over(tmp_path: Path) -> None:
    file, now = tmp_path / "pair.json", time()
    costs = ModelProfile(passes={1: 0.07}, reading=0.004)
    ends = {"sound": None, "doubted": now + 60, "over": now - 1}
    models = {key: costs.model_copy(update={"until": until}) for key, until in ends.items()}
    assert save(KEPT.model_copy(update={"models": models}), file) == ""
    assert list(load(file)[0].models) == ["sound", "doubted"]
    assert load(file)[0].drafters == KEPT.drafters


@pytest.mark.parametrize("content", ["", "{", "[]", '{"models": {"m": {"passes": {}, "reading": 1}}}', '{"models": 3}'])
def test_a_damaged_file_is_ignored_in_one_line(tmp_path: Path, content: str) -> None:
    file = tmp_path / "pair.json"
    file.write_text(content)
    kept, line = load(file)
    assert kept == SavedProfile()
    assert line == f"{file} is damaged: measured anew"


def test_a_folder_that_can_not_be_written_to_is_told_in_one_line(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    line = save(KEPT, tmp_path / "file" / "pair.json")
    assert line.startswith(f"what was measured can't be kept in {tmp_path / 'file'}: ")
    assert "\n" not in line


def test_a_model_is_measured_at_the_sizes_that_tell_most(real: LocalModels) -> None:
    costs = profile_model(real.target.model, real.encode("A text of some words, to be read."))
    assert {1, 8} <= set(costs.passes) <= set(PASS_SIZES)
    assert list(costs.passes.values()) == sorted(costs.passes.values())


def test_costs_are_those_of_a_file_and_how_it_is_opened(tmp_path: Path) -> None:
    file = tmp_path / "m.gguf"
    file.write_bytes(b"GGUF")
    key = model_key(file, LoadOptions())
    assert key == model_key(file, LoadOptions())
    assert key != model_key(file, LoadOptions(threads=1))
    file.write_bytes(b"GGUF, another one")
    assert key != model_key(file, LoadOptions())
