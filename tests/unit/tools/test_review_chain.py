"""The audit log: whatever is done to it is found, and what a killed process left behind is told from that."""

from __future__ import annotations

import hashlib
import json
import resource
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from specollama.errors import RunError, UsageError
from specollama.tools.review import hash_chain
from specollama.tools.review.decisions import approve
from specollama.tools.review.hash_chain import ChainHead
from specollama.tools.review.run_folder import HEAD, LOG, LogTampered, open_existing_run, open_run, verify_log
from tests.support.review_runs import answered, first, run_of, synced


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A run of two items, one of them approved: four lines, of which the last is the approval."""
    with run_of(tmp_path / "run", a="Blue.", b="Grün.") as run:
        run.append("Ann", approve(run.state.items["a"]))
    return tmp_path / "run"


def faults(log: bytes, head: ChainHead) -> list[str]:
    return list(hash_chain.read_chain(log, head.model_dump_json().encode()).faults)


@pytest.fixture
def log(folder: Path) -> bytes:
    return (folder / LOG).read_bytes()


@pytest.fixture
def head(folder: Path) -> ChainHead:
    return ChainHead.model_validate_json((folder / HEAD).read_bytes())


def test_an_untouched_log_is_whole(folder: Path, log: bytes, head: ChainHead) -> None:
    found, wrong = verify_log(folder)

    assert (wrong, found.unfinished, found.torn) == ([], False, 0)
    assert [line.entry.kind for line in found.lines] == ["opened", "answered", "answered", "approved"]
    assert found.hashes[-1] == hashlib.sha256(log.split(b"\n")[-2]).hexdigest() == head.hash


def test_each_line_says_who_did_what_when_to_which_text(folder: Path, log: bytes) -> None:
    approved = json.loads(log.split(b"\n")[-2])

    assert (approved["n"], approved["who"]) == (4, "Ann")
    assert approved["entry"] == {"kind": "approved", "id": "a", "digest": hashlib.sha256(b"Blue.").hexdigest()}
    assert approved["at"].endswith("Z")


def test_any_changed_byte_is_found(log: bytes, head: ChainHead) -> None:
    for place in range(len(log)):
        changed = log[:place] + bytes([log[place] ^ 1]) + log[place + 1 :]
        assert faults(changed, head), f"byte {place}"


def test_any_removed_line_is_found(log: bytes, head: ChainHead) -> None:
    lines = log.splitlines(keepends=True)
    for gone in range(len(lines)):
        assert faults(b"".join(lines[:gone] + lines[gone + 1 :]), head), f"line {gone + 1}"


def test_any_two_lines_that_changed_places_are_found(log: bytes, head: ChainHead) -> None:
    lines = log.splitlines(keepends=True)
    for one in range(len(lines) - 1):
        moved = [*lines[:one], lines[one + 1], lines[one], *lines[one + 2 :]]
        assert faults(b"".join(moved), head), f"lines {one + 1} and {one + 2}"


def test_a_forged_line_at_the_end_is_found_though_it_follows_the_chain(log: bytes, head: ChainHead) -> None:
    with_forged = log + hash_chain.encoded(head, "2026-01-01T00:00:00Z", "Ann", answered("b", "Gold.", 2)) + b"\n"

    assert faults(with_forged, head) == ["5 lines are there, and only 4 of them were written by a run"]


def test_a_cut_end_is_found_wherever_the_cut_is(log: bytes, head: ChainHead) -> None:
    for length in range(len(log)):
        assert faults(log[:length], head), f"{length} bytes left"


def test_lines_that_are_gone_from_the_end_are_told_by_their_number(log: bytes, head: ChainHead) -> None:
    for left in range(4):
        shorter = b"".join(log.splitlines(keepends=True)[:left])
        assert faults(shorter, head) == [f"the end is cut off: 4 lines were written, {left} are there"]


def test_a_first_line_that_says_it_follows_another_one_is_found() -> None:
    line = hash_chain.encoded(ChainHead(hash="0" * 64), "2026-01-01T00:00:00Z", "Ann", first(["a"]))

    [fault] = faults(line + b"\n", ChainHead(count=1, hash=hash_chain.hash_of(line)))
    assert fault.startswith("line 1 don't belong together")


def test_nothing_may_follow_the_line_that_a_killed_process_had_written_whole(log: bytes, head: ChainHead) -> None:
    line = hash_chain.encoded(head, "2026-01-01T00:00:00Z", "Ann", answered("b", "Gold.", 2))
    announcing = head.model_copy(update={"next": hash_chain.hash_of(line)})

    assert faults(log + line + b"\n", announcing) == []
    assert faults(log + line + b"\nhalf a line", announcing) == [
        "5 lines are there, and only 4 of them were written by a run",
        "line 6 is cut off in its middle",
    ]


def test_a_log_that_is_gone_is_found(folder: Path) -> None:
    (folder / LOG).unlink()

    assert verify_log(folder)[1] == ["the end is cut off: 4 lines were written, 0 are there"]


@pytest.mark.parametrize("content", [b"{}", b"", b"[]", b'{"count": 4}', b'{"count": 3, "hash": ""}'])
def test_a_head_that_was_changed_is_found(folder: Path, content: bytes) -> None:
    (folder / HEAD).write_bytes(content)

    assert verify_log(folder)[1]


def test_a_head_that_is_gone_is_found(folder: Path) -> None:
    (folder / HEAD).unlink()

    assert verify_log(folder)[1] == ["the head is missing"]


def test_a_chain_that_was_made_anew_is_found_where_an_entry_may_not_be(folder: Path, head: ChainHead) -> None:
    """Whoever can write both files can forge a chain; what it says must be allowed all the same."""
    forged = hash_chain.encoded(head, "2026-01-01T00:00:00Z", "Ann", answered("b", "Gold.", 7))
    with (folder / LOG).open("ab") as log:
        log.write(forged + b"\n")
    (folder / HEAD).write_text(ChainHead(count=5, hash=hash_chain.hash_of(forged)).model_dump_json())

    assert verify_log(folder)[1] == ["line 5: b: attempt 7 follows 1"]


@pytest.mark.parametrize(("place", "said"), [(1, 0), (1, 2), (3, 2), (4, 5)])
def test_a_line_that_says_another_number_is_found_in_a_chain_made_anew(log: bytes, place: int, said: int) -> None:
    lines, before = list[bytes](), ""
    for number, raw in enumerate(log.split(b"\n")[:-1], 1):
        line = json.loads(raw) | {"prev": before} | ({"n": said} if number == place else {})
        lines.append(json.dumps(line).encode())
        before = hash_chain.hash_of(lines[-1])
    made = b"".join(line + b"\n" for line in lines)
    assert faults(made, ChainHead(count=4, hash=before)) == [f"line {place} says that it is line {said}"]


def test_lines_are_numbered_from_1_one_after_the_other(log: bytes) -> None:
    assert [json.loads(line)["n"] for line in log.split(b"\n")[:-1]] == [1, 2, 3, 4]


def test_an_entry_is_on_the_disk_between_two_heads_when_append_returns(folder: Path) -> None:
    """Whatever moment the power fails at: the head that announces the line, the line, the head that has it."""
    with open_existing_run(folder, "Ann") as run, synced(folder) as on_disk:
        run.append("Ann", approve(run.state.items["b"]))
    log, head = (folder / LOG).read_text(), (folder / HEAD).read_text()
    names = [each.partition(":")[0] for each in on_disk]
    assert names == [f"{HEAD}.new", folder.name, LOG, f"{HEAD}.new", folder.name]
    announced = ChainHead.model_validate_json(on_disk[0].partition(": ")[2])
    assert (announced.count, announced.next) == (4, ChainHead.model_validate_json(head).hash)
    assert on_disk[2] == f"{LOG}: {log}", "whole, not what a buffer had let go of"
    assert on_disk[3] == f"{HEAD}.new: {head}"


def test_a_torn_line_is_cut_off_on_the_disk_before_anything_follows(folder: Path, log: bytes, head: ChainHead) -> None:
    (folder / LOG).write_bytes(log + b"{")
    (folder / HEAD).write_text(head.model_copy(update={"next": hash_chain.hash_of(b"{}")}).model_dump_json())
    with synced(folder) as on_disk, open_existing_run(folder, "Ann"):
        assert on_disk[0] == f"{LOG}: {log.decode()}"


def test_nothing_goes_on_with_a_log_that_was_changed(folder: Path, log: bytes) -> None:
    (folder / LOG).write_bytes(log.replace(b'"Ann"', b'"Eve"'))

    with (
        pytest.raises(LogTampered, match=r"line 4 isn't the one that was written; `specollama review verify"),
        open_existing_run(folder, "Ann"),
    ):
        pytest.fail("opened")


def test_a_process_killed_at_any_byte_leaves_a_run_that_goes_on(folder: Path, log: bytes, head: ChainHead) -> None:
    """As `append` writes: the head with what is coming, the line, the head again."""
    line = hash_chain.encoded(head, "2026-01-01T00:00:00Z", "machine", answered("b", "Gold.", 2)) + b"\n"
    pending = head.model_copy(update={"next": hash_chain.hash_of(line[:-1])})
    for written in [*range(0, len(line), 25), len(line) - 1, len(line)]:
        (folder / LOG).write_bytes(log + line[:written])
        (folder / HEAD).write_text(pending.model_dump_json())
        found, wrong = verify_log(folder)
        assert (wrong, found.unfinished) == ([], True)
        assert (folder / LOG).read_bytes() == log + line[:written]  # looking changes nothing
        with open_run(folder, "machine") as run:
            whole = written == len(line)
            assert run.state.items["b"].text == ("Gold." if whole else "Grün.")
            assert run.recovered == (0 if whole else written)
            assert run.state.items["a"].approvals == {"ann": "Ann"}
        after, wrong = verify_log(folder)
        assert (wrong, after.unfinished) == ([], False)
        assert after.lines[-1].entry.kind == ("answered" if whole else "recovered" if written else "approved")


def test_an_unfinished_line_is_no_cover_for_another_one(log: bytes, head: ChainHead) -> None:
    ours = hash_chain.encoded(head, "2026-01-01T00:00:00Z", "machine", answered("b", "Gold.", 2))
    forged = hash_chain.encoded(head, "2026-01-01T00:00:00Z", "machine", answered("b", "Lead.", 2))
    pending = head.model_copy(update={"next": hash_chain.hash_of(ours)})

    assert not faults(log + ours + b"\n", pending)
    assert faults(log + forged + b"\n", pending)
    assert faults(log + ours + b"\nx", pending)


def test_after_an_entry_that_could_not_be_written_nothing_follows_it(folder: Path) -> None:
    with open_existing_run(folder, "Ann") as run:
        with room_for(10, folder / LOG), pytest.raises(OSError, match=f"File too large: '{folder / LOG}'"):
            run.append("Ann", approve(run.state.items["b"]))
        with pytest.raises(RunError, match="the last entry couldn't be written"):
            run.append("Ann", approve(run.state.items["a"]))
    with open_existing_run(folder, "Ann") as run:
        assert (run.recovered, run.state.items["b"].approvals) == (10, {})
        run.append("Ann", approve(run.state.items["b"]))
    assert verify_log(folder)[1] == []


@contextmanager
def room_for(bytes: int, file: Path) -> Iterator[None]:
    """No file may grow beyond so many bytes more than this one has."""
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (file.stat().st_size + bytes, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))


def test_a_run_killed_before_its_first_entry_can_be_begun(tmp_path: Path) -> None:
    """What the first moments leave: a lock, and a head that isn't in its place yet."""
    (tmp_path / "lock").touch()
    (tmp_path / "head.json.new").write_text("{")
    with open_run(tmp_path, "machine") as run:
        run.append("machine", first(["a"]))
    assert verify_log(tmp_path)[1] == []


def test_a_run_whose_first_line_was_torn_is_begun_and_goes_on(tmp_path: Path) -> None:
    line = hash_chain.encoded(ChainHead(), "2026-01-01T00:00:00Z", "machine", first(["a"]))
    (tmp_path / LOG).write_bytes(line[:40])
    (tmp_path / HEAD).write_text(ChainHead(next=hash_chain.hash_of(line)).model_dump_json())
    with open_run(tmp_path, "machine") as run:
        assert (run.recovered, run.state.opened) == (40, None)
        run.append("machine", first(["a"]))
    with open_existing_run(tmp_path, "Ann") as run:
        run.append("machine", answered("a", "Blue."))
    found, wrong = verify_log(tmp_path)
    assert (wrong, [line.entry.kind for line in found.lines]) == ([], ["recovered", "opened", "answered"])


def test_a_run_is_open_once(folder: Path) -> None:
    with open_existing_run(folder, "Ann"):
        with (
            pytest.raises(UsageError, match="another specollama is at work on this run"),
            open_existing_run(folder, "Ben"),
        ):
            pytest.fail("opened twice")
        with pytest.raises(UsageError, match="another specollama is at work on this run"):
            verify_log(folder)


def test_a_folder_with_other_things_in_it_is_left_alone(tmp_path: Path) -> None:
    (tmp_path / "thesis.tex").write_text("...")
    with pytest.raises(UsageError, match="not empty, and not the folder of a run"), open_run(tmp_path, "Ann"):
        pytest.fail("opened")

    assert [path.name for path in tmp_path.iterdir()] == ["thesis.tex"]
