"""Release the approved texts of a run, each once, into a file or through a command.

An intent is written before each step and the outcome after it, so that a crash in between is seen. For the file the
rest can be told from what is there; for a command it can't, and it is never run again unless a person says so.
"""

from __future__ import annotations

import json
import os
import shlex
import subprocess
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from specollama.config.atomic_file import sync
from specollama.errors import RunError, UsageError, one_line
from specollama.tools.review.hash_chain import hash_of
from specollama.tools.review.log_entries import (
    CommandEnded,
    CommandStarted,
    ItemSent,
    ReleaseAnnounced,
    ReleaseDone,
    ReleaseWithdrawn,
)
from specollama.tools.review.run_folder import ReviewRun, write_durably
from specollama.tools.review.state import CommandStatus, ItemStatus, ReviewItem, RunState

_KEPT = 4096  # characters of what a command prints, at the end


def item_object(item: ReviewItem) -> dict[str, Any]:
    """The part of an item that is released."""
    return {
        "id": item.id,
        "text": item.text,
        "digest": item.digest,
        "edited": bool(item.edits),
        "approved_by": list(item.approvals.values()),
        "metadata": item.answer.metadata if item.answer else {},
    }


def refuse_undecided(run: ReviewRun) -> None:
    """Raises UsageError while items are undecided."""
    undecided = run.state.with_status(ItemStatus.WAITING, ItemStatus.FAILED, ItemStatus.OPEN)
    if not undecided:
        return
    counts = {
        status: len(run.state.with_status(status))
        for status in (ItemStatus.WAITING, ItemStatus.FAILED, ItemStatus.OPEN)
    }
    words = {ItemStatus.WAITING: "without a reply", ItemStatus.FAILED: "failed", ItemStatus.OPEN: "not decided"}
    told = ", ".join(f"{count} {words[status]}" for status, count in counts.items() if count)
    raise UsageError(f"{run.folder}: {told}; decide them, or release what is approved with --partial")


def items_to_release(state: RunState, *, again: bool = False) -> list[ReviewItem]:
    """The approved items that aren't in a file yet; those that a command may have sent only with `again`."""
    unreleased = [item for item in state.approved() if not item.released]
    return [item for item in unreleased if again or not item.gone]


def items_to_run(state: RunState, *, again: bool = False) -> list[ReviewItem]:
    """The approved items that no command was run for; those that went out in a file only with `again`."""
    unsent = [item for item in state.approved() if item.outgoing is CommandStatus.NOT_RUN]
    return [item for item in unsent if again or not item.gone]


def unresolved_items(state: RunState) -> list[ReviewItem]:
    """The items whose command may have worked or not."""
    return [item for item in state.items.values() if item.outgoing in (CommandStatus.UNKNOWN, CommandStatus.FAILED)]


def write_release(run: ReviewRun, who: str, file: Path, *, again: bool = False) -> int:
    """The items of `items_to_release` into a new file, all or nothing; how many these are.

    Raises UsageError when there are none, or the file exists.
    """
    items = items_to_release(run.state, again=again)
    if not items:
        raise UsageError(f"{run.folder}: {_why_none(run.state)}")
    if file.exists():
        raise UsageError(f"{file}: exists; name a new file")
    if not file.parent.is_dir():
        raise UsageError(f"{file}: there is no folder {file.parent}")
    file = file.absolute()
    content = "".join(json.dumps(item_object(item), ensure_ascii=False) + "\n" for item in items).encode()
    draft = file.with_name(f".{file.name}.{hash_of(content)[:12]}")
    draft.unlink(missing_ok=True)  # a process that was killed before it announced the release left it
    write_durably(draft, content)
    sync(draft.parent)
    sent = tuple(ItemSent(id=item.id, digest=item.digest) for item in items)
    run.append(who, ReleaseAnnounced(file=str(file), draft=str(draft), sha256=hash_of(content), items=sent))
    finish_release(run, who)
    return len(items)


def finish_release(run: ReviewRun, who: str) -> str:
    """Complete a release that was announced: its draft goes away before the file appears.

    The file's name; "" when none was announced. Raises RunError when neither is there: only a person can say then
    whether it went out (`mark_release`).
    """
    announced = run.state.releasing
    if announced is None:
        return ""
    file, draft = Path(announced.file), Path(announced.draft)
    if draft.exists():
        _appear(draft, file, announced.sha256)
    elif _holds(file, announced.sha256):
        _leaving(draft).unlink(missing_ok=True)
    else:
        sent, not_sent = (shlex.quote(f"{file}={word}") for word in ("sent", "not-sent"))
        raise RunError(
            f"{file}: what was to be released there isn't there, and neither is its draft. Look whether it went out, "
            f"and decide by hand: --mark {sent}, or --mark {not_sent} to release its items again"
        )
    run.append(who, ReleaseDone(file=announced.file))
    return announced.file


def mark_release(run: ReviewRun, who: str, *, sent: bool) -> None:
    """A person's word on a release that was announced. Raises UsageError when what was announced is there."""
    announced = run.state.releasing
    if announced is None or any(_holds(Path(each), announced.sha256) for each in (announced.file, announced.draft)):
        raise UsageError(f"{run.folder}: there is no release to decide by hand")
    run.append(who, ReleaseDone(file=announced.file) if sent else ReleaseWithdrawn(file=announced.file))
    _leaving(Path(announced.draft)).unlink(missing_ok=True)


def _holds(file: Path, sha256: str) -> bool:
    return file.is_file() and hash_of(file.read_bytes()) == sha256


def _appear(draft: Path, file: Path, sha256: str) -> None:
    if not _holds(draft, sha256):
        raise RunError(
            f"{draft}: isn't what was to be released; find out who changed it. To release its items again: "
            f"--mark {shlex.quote(f'{file}=not-sent')}"
        )
    # Once the draft has its other name the file may have appeared, and may have been taken away since: where this is
    # broken off it isn't done again by itself.
    leaving = _leaving(draft)
    os.rename(draft, leaving)
    sync(draft.parent)
    try:
        os.link(leaving, file)  # unlike a rename it never takes the place of a file that is there
    except OSError as error:
        os.rename(leaving, draft)
        raise RunError(_why_not(error, draft, file)) from error
    sync(file.parent)
    leaving.unlink()


def _leaving(draft: Path) -> Path:
    """Name of the draft while it is being moved to its final name."""
    return draft.with_name(f"{draft.name}.leaving")


def _why_not(error: OSError, draft: Path, file: Path) -> str:
    if isinstance(error, FileExistsError):
        return f"{file}: exists; move it away, and what was to be released there ({draft}) takes its place"
    return f"{file}: can't appear in one step on this file system ({error.strerror or error}); {draft} is kept"


def _why_none(state: RunState) -> str:
    if not state.approved():
        return "nothing is approved"
    if items_to_release(state, again=True):
        return "all that is approved may have gone out by a command before; --again releases it to a file as well"
    files = ", ".join(dict.fromkeys(item.released for item in state.approved()))
    return f"all that is approved was released before, to {files}"


@dataclass(frozen=True, slots=True)
class OutboundCommand:
    """A command that takes one item each time: an argument list, run without a shell, the item as JSON on its stdin."""

    run: ReviewRun
    who: str
    command: Sequence[str]
    told: Callable[[str], None]

    def send_all(self, items: Sequence[ReviewItem]) -> int:
        """Run it for each of these items; how many these were.

        Raises RunError at the first that fails: those after it weren't touched.
        """
        for item in items:
            self._send(item)
            self.told(item.id)
        return len(items)

    def _send(self, item: ReviewItem) -> None:
        said = json.dumps(item_object(item), ensure_ascii=False) + "\n"
        self.run.append(self.who, CommandStarted(id=item.id, digest=item.digest, command=tuple(self.command)))
        try:
            # stays with the terminal: Ctrl-C reaches it, too, and leaves an intent without a result
            ended = subprocess.run(list(self.command), input=said.encode(), capture_output=True, check=False)
        except OSError as error:
            self.run.append(self.who, CommandEnded(id=item.id, code=None, error=str(error)))
            raise RunError(f"{item.id}: {self.command[0]} can't be run: {error.strerror or error}") from error
        out, err = _end(ended.stdout), _end(ended.stderr)
        self.run.append(self.who, CommandEnded(id=item.id, code=ended.returncode, stdout=out, stderr=err))
        if ended.returncode:
            why = (err.strip().splitlines() or [""])[-1]
            raise RunError(
                f"{item.id}: {self.command[0]} ended with {ended.returncode}{': ' + one_line(why) if why else ''}; "
                "the items after it weren't sent. Decide by hand: "
                f"--mark {item.id}=sent, or --mark {item.id}=not-sent to run it again"
            )


def _end(printed: bytes) -> str:
    return printed.decode("utf-8", "replace")[-_KEPT:]
