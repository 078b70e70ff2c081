"""A run's folder: private, without links to elsewhere, with one writer, and repaired where a log was damaged."""

from __future__ import annotations

import os
import shutil
import stat
from collections.abc import Callable
from pathlib import Path

import pytest

from specollama.errors import RunError
from specollama.tools.review.decisions import approve
from specollama.tools.review.log_entries import CommandStarted
from specollama.tools.review.release import write_release
from specollama.tools.review.repair import repair_run
from specollama.tools.review.run_folder import HEAD, LOCK, LOG, open_existing_run, open_run, verify_log
from tests.support.review_runs import answered, first, run_of


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A run of two items, one of them approved: four lines."""
    with run_of(tmp_path / "run", a="Blue.", b="Grün.") as run:
        run.append("Ann", approve(run.state.items["a"]))
    return tmp_path / "run"


def mode(path: Path) -> int:
    return stat.S_IMODE(path.stat().st_mode)


def test_a_run_and_what_it_releases_is_its_users_alone_whatever_the_umask(tmp_path: Path) -> None:
    before = os.umask(0)
    try:
        with run_of(tmp_path / "run", a="Blue.") as run:
            run.append("Ann", approve(run.state.items["a"]))
            write_release(run, "Ann", tmp_path / "out.jsonl")
    finally:
        os.umask(before)
    assert mode(tmp_path / "run") == 0o700
    texts = [tmp_path / "run" / LOG, tmp_path / "run" / HEAD, tmp_path / "out.jsonl"]
    assert [oct(mode(file)) for file in texts] == ["0o600"] * 3


def test_a_run_that_its_reviewers_share_stays_shared(folder: Path) -> None:
    for name in (LOG, HEAD):
        (folder / name).chmod(0o660)
    with open_existing_run(folder, "Ann") as run:
        run.append("Ann", approve(run.state.items["b"]))
    assert [mode(folder / name) for name in (LOG, HEAD)] == [0o660] * 2


@pytest.mark.parametrize("name", [LOG, HEAD, f"{HEAD}.new", LOCK])
@pytest.mark.parametrize("make", [lambda path, to: path.symlink_to(to), lambda path, to: os.mkfifo(path)])
def test_a_file_of_a_run_that_is_a_link_or_a_pipe_is_refused_and_nothing_elsewhere_is_touched(
    folder: Path, tmp_path: Path, name: str, make: Callable[[Path, Path], None]
) -> None:
    elsewhere = tmp_path / "elsewhere"
    elsewhere.write_bytes((folder / name).read_bytes() if (folder / name).exists() else b"mine")
    before = elsewhere.read_bytes()
    (folder / name).unlink(missing_ok=True)
    make(folder / name, elsewhere)
    with pytest.raises(RunError, match=f"{name}: isn't a plain file in the run's folder"), open_run(folder, "Ann"):
        pytest.fail("opened")
    assert elsewhere.read_bytes() == before


@pytest.mark.parametrize("name", [LOG, f"{HEAD}.new"])
def test_a_link_that_is_put_there_while_a_run_is_open_is_not_followed(folder: Path, tmp_path: Path, name: str) -> None:
    elsewhere = tmp_path / "elsewhere"
    elsewhere.write_text("mine")
    with open_existing_run(folder, "Ann") as run:
        (folder / name).unlink(missing_ok=True)
        (folder / name).symlink_to(elsewhere)
        if name == LOG:
            with pytest.raises(RunError, match="isn't a plain file"):
                run.append("Ann", approve(run.state.items["b"]))
        else:
            run.append("Ann", approve(run.state.items["b"]))  # the link is removed, as a leftover would be
    assert elsewhere.read_text() == "mine"


def test_without_the_lock_a_second_writer_is_noticed_before_the_first_one_writes_again(folder: Path) -> None:
    with open_existing_run(folder, "Ann") as ours:
        (folder / LOCK).unlink()
        with open_existing_run(folder, "Ben") as theirs:
            theirs.append("Ben", approve(theirs.state.items["b"]))
            with pytest.raises(RunError, match="another process wrote to this run; start again"):
                ours.append("Ann", approve(ours.state.items["b"]))
            theirs.append("Ben", approve(theirs.state.items["a"]))
    found, faults = verify_log(folder)
    assert (len(found.lines), faults) == (6, [])


def test_nothing_is_repaired_where_nothing_is_wrong(folder: Path) -> None:
    log = (folder / LOG).read_bytes()
    assert repair_run(folder, "Ann") is None
    assert (folder / LOG).read_bytes() == log


def broken_by_two_writers(folder: Path) -> None:
    """As versions before wrote: two processes went on from line 4, the second one with two lines."""
    other = folder.with_name("other")
    shutil.copytree(folder, other)
    with open_existing_run(folder, "Ann") as run:
        run.append("Ann", CommandStarted(id="a", digest=run.state.items["a"].digest, command=("send",)))
    with open_existing_run(other, "Ben") as run:
        run.append("Ben", approve(run.state.items["b"]))
        run.append("Ben", approve(run.state.items["a"]))
    theirs = (other / LOG).read_bytes().splitlines(keepends=True)[4:]
    with (folder / LOG).open("ab") as log:
        log.writelines(theirs)


DAMAGES: dict[str, tuple[Callable[[Path], None], int, list[str]]] = {
    "two writers": (
        broken_by_two_writers,
        6,
        ["line 5, Ann: running a (it may have gone out: look, before it is released again)"],
    ),
    "a changed line": (
        lambda folder: (folder / LOG).write_bytes((folder / LOG).read_bytes().replace("Grün".encode(), b"Gold")),
        2,
        ["line 3, machine: answered b", "line 4, Ann: approved a"],
    ),
    "lines that changed places": (
        lambda folder: (folder / LOG).write_bytes(
            b"".join((folder / LOG).read_bytes().splitlines(keepends=True)[place] for place in (0, 2, 1, 3))
        ),
        4,
        [],
    ),
    "a head that is gone": (lambda folder: (folder / HEAD).unlink(), 4, []),
    "a torn end": (lambda folder: (folder / LOG).write_bytes((folder / LOG).read_bytes()[:-3]), 3, ["... bytes"]),
    "a line with rubbish": (
        lambda folder: (folder / LOG).write_bytes((folder / LOG).read_bytes() + b"[" * 100_000 + b"\n"),
        4,
        ["100000 bytes that aren't an entry"],
    ),
}


@pytest.mark.parametrize("damage", DAMAGES)
def test_a_repair_keeps_the_longest_valid_chain_and_sets_the_rest_aside(folder: Path, damage: str) -> None:
    make, kept, told = DAMAGES[damage]
    make(folder)
    before = (folder / LOG).read_bytes()
    assert verify_log(folder)[1]
    repaired = repair_run(folder, "Eve")
    assert repaired
    assert repaired.kept == kept
    assert len(repaired.moved) == len(told)
    assert all(line == said for line, said in zip(repaired.moved, told, strict=True) if said != "... bytes")
    found, faults = verify_log(folder)
    assert (faults, found.lines[-1].entry.kind, found.lines[-1].who) == ([], "recovered", "Eve")
    aside = repaired.aside.read_bytes().splitlines()
    assert sorted([*aside, *(folder / LOG).read_bytes().splitlines()[:-1]]) == sorted(before.splitlines())
    assert mode(repaired.aside) == 0o600
    with open_existing_run(folder, "Ann") as run:
        run.append("machine", answered("b", "Gold.", run.state.items["b"].attempts + 1))


def test_a_log_of_which_no_line_is_valid_stays_as_it_is(folder: Path) -> None:
    (folder / LOG).write_bytes(b"{}\n")
    with pytest.raises(RunError, match="none of its lines can be kept; it stays as it is"):
        repair_run(folder, "Ann")
    assert (folder / LOG).read_bytes() == b"{}\n"


def test_what_an_entry_may_not_say_ends_the_chain_that_is_kept(tmp_path: Path) -> None:
    """A chain that somebody forged from a sound log: its second opening isn't allowed."""
    with open_run(tmp_path / "run", "machine") as run:
        run.append("machine", first(["a"]))
        run.append("machine", answered("a", "Blue."))
        run.state.opened = None
        run.append("machine", first(["b"]))
    repaired = repair_run(tmp_path / "run", "Ann")
    assert repaired
    assert repaired.kept == 2
