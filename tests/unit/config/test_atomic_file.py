"""A file that is replaced: whole or not at all, on the disk, and without leftovers of killed processes."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from pathlib import Path

import pytest

from specollama.backends.llama_cpp import requantize
from specollama.config.atomic_file import replacement


@pytest.fixture
def file(tmp_path: Path) -> Path:
    (tmp_path / "file[1]").write_text("old")
    return tmp_path / "file[1]"


def write(file: Path, text: str) -> None:
    with replacement(file) as scratch:
        scratch.write_text(text)


def test_a_file_is_on_the_disk_before_it_takes_the_others_place(file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    synced, really = list[tuple[bool, str]](), os.fsync

    def noting(handle: int) -> None:
        really(handle)
        is_folder = os.path.samestat(os.fstat(handle), file.parent.stat())
        synced.append((is_folder, file.read_text()))

    monkeypatch.setattr(os, "fsync", noting)
    write(file, "new")
    assert synced == [(False, "old"), (True, "new")]


def test_a_block_that_fails_leaves_the_old_file_alone(file: Path) -> None:
    def write_half() -> None:
        with replacement(file) as scratch:
            scratch.write_text("half")
            raise KeyError

    with pytest.raises(KeyError):
        write_half()
    assert (file.read_text(), os.listdir(file.parent)) == ("old", [file.name])


def test_what_a_killed_process_left_is_deleted_and_what_a_living_one_writes_is_not(file: Path) -> None:
    code = "import os, sys, pathlib; from specollama.config.atomic_file import replacement as r\n"
    code += "with r(pathlib.Path(sys.argv[1])) as s: os.kill(os.getpid(), 9)"
    subprocess.run([sys.executable, "-c", code, str(file)], check=False)
    assert len(os.listdir(file.parent)) == 2
    with replacement(file) as living:
        living.write_text("first")
        write(file, "second")
        assert living.exists()
        assert len(os.listdir(file.parent)) == 2
    assert (file.read_text(), os.listdir(file.parent)) == ("first", [file.name])


def test_others_files_that_begin_alike_are_left_alone(file: Path, tmp_path: Path) -> None:
    elsewhere = tmp_path / "elsewhere"
    elsewhere.write_text("mine")
    (tmp_path / f".{file.name}.link.scratch").symlink_to(elsewhere)
    (tmp_path / f".{file.name}.swp").write_text("an editor's")
    write(file, "new")
    assert (tmp_path / f".{file.name}.swp").exists()
    assert elsewhere.read_text() == "mine"
    assert (tmp_path / f".{file.name}.link.scratch").is_symlink()


def test_scratch_files_that_version_0_1_left_beside_draft_copies_are_deleted_once_they_are_old(tmp_path: Path) -> None:
    for name, age in (("old.tmp", 2 * 3600), ("new.tmp", 0)):
        (tmp_path / name).touch()
        os.utime(tmp_path / name, (time.time() - age,) * 2)
    requantize._delete_abandoned(tmp_path)
    assert os.listdir(tmp_path) == ["new.tmp"]
