"""A run's folder: one process at a time, and a log that only grows, each line on the disk before anything follows."""

from __future__ import annotations

import os
import stat
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import IO

from filelock import FileLock, Timeout
from pydantic import ValidationError

from specollama.config.atomic_file import sync
from specollama.config.os_errors import naming_file
from specollama.config.plain_file import NotPlainFile, open_plain
from specollama.errors import RunError, UsageError, one_line
from specollama.tools.review import hash_chain
from specollama.tools.review.hash_chain import ChainHead
from specollama.tools.review.log_entries import AnyEntry, LogRepaired
from specollama.tools.review.state import EntryRefused, RunState, fold

LOG, HEAD, LOCK = "log.jsonl", "head.json", "lock"
_NEW = ".new"  # of a file that is about to take another's place


class LogTampered(RunError):
    """The log isn't the one that was written."""


@dataclass(slots=True)
class ReviewRun:
    """An open run. `append` is the only way in which anything changes."""

    folder: Path
    state: RunState
    _head: ChainHead
    recovered: int = 0  # bytes of a killed process's entry, cut off at opening
    _unsure: bool = False  # an entry was begun, and may be on the disk in part

    def append(self, who: str, entry: AnyEntry) -> None:
        """Write the entry and wait until it is on the disk. An unfit one raises EntryRefused, nothing written."""
        if self._unsure:
            raise RunError(f"{self.folder}: the last entry couldn't be written; start again")
        self.state.check(who, entry)
        self._refuse_other_writer()
        self._unsure = True
        self._write(hash_chain.encoded(self._head, _now(), who, entry))
        self._unsure = False
        self.state.apply(who, entry)

    def _refuse_other_writer(self) -> None:
        """Raises RunError when the disk's head isn't the one in memory, as where the lock was deleted."""
        head = read_plain(self.folder / HEAD)
        if (ChainHead() if head is None else _read_head(head)) != self._head:
            raise RunError(f"{self.folder}: another process wrote to this run; start again, so that its entries count")

    def _write(self, line: bytes) -> None:
        after = ChainHead(count=self._head.count + 1, hash=hash_chain.hash_of(line))
        _write_head(self.folder, self._head.model_copy(update={"next": after.hash}))
        with naming_file(self.folder / LOG), open_in_run(self.folder / LOG, "ab") as log:
            log.write(line + b"\n")
            log.flush()
            os.fsync(log.fileno())
        _write_head(self.folder, after)
        self._head = after


@contextmanager
def open_run(folder: Path, who: str) -> Iterator[ReviewRun]:
    """The run in a folder, for this process alone. A new folder is made, and holds a run without entries.

    What a killed process was writing is settled first. Raises UsageError when another process has the run, or the
    folder holds something else; Tampered when the log isn't whole.
    """
    if not _looks_like_a_run(folder):
        raise UsageError(f"{folder}: not empty, and not the folder of a run; name another one")
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    with lock_folder(folder):
        found = read_run(folder)
        state = _state(folder, found)
        run = ReviewRun(folder, state, found.head, found.torn)
        if found.unfinished:
            _settle(folder, found)
        if found.torn:
            run.append(who, LogRepaired(cut=found.torn))
        yield run


@contextmanager
def open_existing_run(folder: Path, who: str) -> Iterator[ReviewRun]:
    """As `open_run`, for a run that was begun before."""
    refuse_missing(folder)
    with open_run(folder, who) as run:
        yield run


def refuse_missing(folder: Path) -> None:
    """Raises UsageError when there is no run in the folder."""
    if not (folder / LOG).exists() and not (folder / HEAD).exists():
        raise UsageError(f"{folder}: there is no run; `specollama batch PAIR PROMPTS.jsonl -o {folder}` begins one")


@contextmanager
def lock_folder(folder: Path) -> Iterator[None]:
    """Holds the folder; the operating system lets go of it when the process ends in whatever way.

    Raises UsageError when another process holds it, RunError when one of the run's files is a link or a device.
    """
    for name in (LOCK, LOG, HEAD, HEAD + _NEW):
        _refuse_other_kinds(folder / name)
    lock = FileLock(folder / LOCK, timeout=0)
    try:
        lock.acquire()
    except Timeout:
        raise UsageError(f"{folder}: another specollama is at work on this run; wait for it, or end it") from None
    try:
        yield
    finally:
        lock.release()


def verify_log(folder: Path) -> tuple[hash_chain.ChainReading, list[str]]:
    """The log, and all that is wrong with it: the chain, the end, and what its entries may not do. Nothing is written.

    Raises UsageError when another process has the run, or there is none.
    """
    refuse_missing(folder)
    with lock_folder(folder) if os.access(folder, os.W_OK) else nullcontext():
        found = read_run(folder)
    faults = list(found.faults)
    try:
        fold(found.lines)
    except EntryRefused as error:
        faults.append(str(error))
    return found, faults


def read_run(folder: Path) -> hash_chain.ChainReading:
    return hash_chain.read_chain(read_plain(folder / LOG) or b"", read_plain(folder / HEAD))


def _state(folder: Path, found: hash_chain.ChainReading) -> RunState:
    try:
        if not found.faults:
            return fold(found.lines)
        fault = found.faults[0]
    except EntryRefused as error:
        fault = str(error)
    raise LogTampered(
        one_line(
            f"{folder / LOG}: {fault}; `specollama review verify {folder}` tells all, and "
            f"`specollama review repair {folder}` keeps what is valid of it"
        )
    ) from None


def _settle(folder: Path, found: hash_chain.ChainReading) -> None:
    """Cut off an unfinished last line, which a killed process leaves; a complete line stays."""
    if found.torn:
        with open_in_run(folder / LOG, "r+b") as log:
            log.truncate(log.seek(0, os.SEEK_END) - found.torn)
            os.fsync(log.fileno())
    _write_head(folder, found.head)


def _read_head(content: bytes) -> ChainHead | None:
    try:
        return ChainHead.model_validate_json(content)
    except ValidationError:
        return None


def _write_head(folder: Path, head: ChainHead) -> None:
    replace_file(folder / HEAD, head.model_dump_json(exclude_none=True).encode())


def replace_file(file: Path, content: bytes) -> None:
    """The file has the old content or the new one, whatever happens, and the new one once this returns.

    A file that is there keeps its mode: several reviewers may share a run.
    """
    draft = file.with_name(file.name + _NEW)
    draft.unlink(missing_ok=True)  # a killed process left it
    write_durably(draft, content)
    if file.exists():
        draft.chmod(stat.S_IMODE(file.stat().st_mode))
    os.replace(draft, file)
    sync(file.parent)


def write_durably(file: Path, content: bytes) -> None:
    """Write a new file that only its owner can read. Raises FileExistsError where there is one of that name."""
    with naming_file(file), open_in_run(file, "xb") as opened_file:
        opened_file.write(content)
        opened_file.flush()
        os.fsync(opened_file.fileno())


def read_plain(file: Path) -> bytes | None:
    """The content of a file; None where there is none. Raises RunError for a link or a device."""
    try:
        with open_in_run(file, "rb") as opened_file:
            return opened_file.read()
    except FileNotFoundError:
        return None


def open_in_run(file: Path, mode: str) -> IO[bytes]:
    """Open a file of a run, never through a link. Raises RunError for what isn't a plain file, OSError."""
    try:
        return open_plain(file, mode, follow_links=False)
    except NotPlainFile:
        raise _other_kind(file) from None


def _refuse_other_kinds(file: Path) -> None:
    """Raises RunError for what is there and isn't a plain file."""
    try:
        if not stat.S_ISREG(file.lstat().st_mode):
            raise _other_kind(file)
    except FileNotFoundError:
        return


def _other_kind(file: Path) -> RunError:
    return RunError(one_line(f"{file}: isn't a plain file in the run's folder; nothing was written. Look what it is"))


def _looks_like_a_run(folder: Path) -> bool:
    if not folder.exists():
        return True
    names = {path.name for path in folder.iterdir()} if folder.is_dir() else {"a file"}
    return not names - {LOCK, HEAD + _NEW} or bool(names & {LOG, HEAD})


def _now() -> str:
    return datetime.now(UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")
