"""What a run writes is on the disk before anything that counts on it is written."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from pathlib import Path

import pytest

from specollama.tools.review.run_folder import HEAD, LOG, replace_file, write_durably
from tests.support.review_runs import answered, run_of

Disk = list[tuple[str, bytes]]
"""What was brought to the disk, in order: a file's name and content then, or a folder's name and nothing."""


@pytest.fixture
def disk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Disk:
    """Notes each `fsync` with what it brings to the disk, and lets it happen."""
    synced, really = Disk(), os.fsync

    def noting(descriptor: int) -> None:
        really(descriptor)
        status = os.fstat(descriptor)
        [path] = [each for each in (tmp_path, *tmp_path.rglob("*")) if os.path.samestat(each.stat(), status)]
        synced.append((path.name, path.read_bytes() if path.is_file() else b""))

    monkeypatch.setattr(os, "fsync", noting)
    return synced


def head(content: bytes) -> tuple[int, bool]:
    """How many lines a head counts, and whether it announces another one."""
    read = json.loads(content)
    return read["count"], "next" in read


def test_a_line_is_announced_then_written_then_counted_each_step_on_the_disk_before_the_next(
    tmp_path: Path, disk: Disk
) -> None:
    with run_of(tmp_path / "run", a="Blue.") as run:
        before = (tmp_path / "run" / LOG).read_bytes()
        disk.clear()
        run.append("machine", answered("a", "Green.", 2))

    names = [name for name, _ in disk]
    assert names == [f"{HEAD}.new", "run", LOG, f"{HEAD}.new", "run"]
    assert [head(disk[0][1]), head(disk[3][1])] == [(2, True), (3, False)]
    assert disk[2][1] == (tmp_path / "run" / LOG).read_bytes() != before
    assert disk[2][1].endswith(b"\n")


def test_the_hash_that_is_announced_is_the_lines(tmp_path: Path, disk: Disk) -> None:
    with run_of(tmp_path / "run", a="Blue.") as run:
        disk.clear()
        run.append("machine", answered("a", "Green.", 2))

    announced, counted = json.loads(disk[0][1]), json.loads(disk[3][1])
    assert announced["next"] == counted["hash"] != announced["hash"]


@pytest.mark.parametrize("write", [write_durably, replace_file])
def test_a_file_that_is_written_is_on_the_disk_whole(
    tmp_path: Path, disk: Disk, write: Callable[[Path, bytes], None]
) -> None:
    write(tmp_path / "file", b"all of it")

    assert disk[0] == (f"file{'.new' if write is replace_file else ''}", b"all of it")
    assert (tmp_path / "file").read_bytes() == b"all of it"


def test_a_file_that_takes_anothers_place_has_its_name_on_the_disk_too(tmp_path: Path, disk: Disk) -> None:
    file = tmp_path / "folder" / "file"
    file.parent.mkdir()
    file.write_bytes(b"old")
    replace_file(file, b"new")

    assert disk == [("file.new", b"new"), ("folder", b"")]
    assert [path.name for path in file.parent.iterdir()] == ["file"]
