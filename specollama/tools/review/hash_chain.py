"""The log as bytes: a chain of lines, each with the hash of the one before, and a head that says where it ends.

The head is what finds a cut end. It is written before a line ("the next one will have this hash") and after it, so
that what a killed process left behind can be told from what somebody else did: that one line, whole, torn or missing.

Whoever can write all of a run's files can also make a new chain; against that, the last hash is to be kept elsewhere.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from pydantic import BaseModel, ConfigDict, ValidationError

from specollama.errors import one_line
from specollama.tools.review.log_entries import AnyEntry, LogLine


class ChainHead(BaseModel):
    """Where the log ends: lines, and the hash of the last. `next`: of a line that is being written."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    count: int = 0
    hash: str = ""
    next: str | None = None


@dataclass(frozen=True, slots=True)
class ChainReading:
    """A log, read against its head.

    `faults`: what is wrong, a line each. `unfinished`: a process was killed while it wrote the line after the last of
    `lines`, of which `torn` bytes are there. `hashes`: of the lines, those that can't be read included.
    """

    lines: Sequence[LogLine]
    head: ChainHead
    hashes: Sequence[str] = ()
    faults: Sequence[str] = ()
    unfinished: bool = False
    torn: int = 0


def hash_of(line: bytes) -> str:
    return hashlib.sha256(line).hexdigest()


def encoded(head: ChainHead, at: str, who: str, entry: AnyEntry) -> bytes:
    """The line that follows the head, without its line end."""
    line = LogLine(n=head.count + 1, prev=head.hash, at=at, who=who, entry=entry)
    return _json(line).encode("utf-8", "surrogatepass")


def _json(line: LogLine) -> str:
    return json.dumps(line.model_dump(mode="python"), ensure_ascii=False, separators=(",", ":"))


def read_chain(log: bytes, written: bytes | None) -> ChainReading:
    """The lines of a log, and all that is wrong with it. `written`: the head's file; neither: a run without entries."""
    if written is None:
        return ChainReading([], ChainHead(), faults=["the head is missing"] if log else [])
    try:
        head = ChainHead.model_validate_json(written)
    except ValidationError:
        return ChainReading([], ChainHead(), faults=["the head isn't what was written there"])
    *whole, torn = log.split(b"\n")
    hashes = [hash_of(raw) for raw in whole]
    last = hashes[-1] if hashes else ""
    if head.next is not None and len(whole) == head.count + 1 and last == head.next and not torn:
        ended, unfinished = ChainHead(count=len(whole), hash=last), True
    else:
        ended, unfinished = ChainHead(count=head.count, hash=head.hash), head.next is not None
    lines, faults = list[LogLine](), list(_chain_faults(whole))
    faults += _end_faults(whole, torn, ended, unfinished)
    for number, raw in enumerate(whole, 1):
        try:
            lines.append(LogLine.model_validate(json.loads(raw)))
        except (ValidationError, ValueError, RecursionError) as error:
            faults.append(f"line {number} can't be read: {one_line(str(error).splitlines()[0])}")
            break
    return ChainReading(lines, ended, hashes, faults, unfinished, len(torn))


def _chain_faults(whole: Sequence[bytes]) -> Iterator[str]:
    """Places where a line doesn't follow the one before."""
    before = ""
    for number, raw in enumerate(whole, 1):
        claimed, own = stated_place(raw)
        if claimed != before:
            where = f"lines {number - 1} and {number}" if number > 1 else "line 1"
            yield f"{where} don't belong together: something was changed, removed, moved or put in there"
        elif own != number:
            yield f"line {number} says that it is line {own}"
        before = hash_of(raw)


def stated_place(raw: bytes) -> tuple[object, object]:
    """The hash of the previous line that a line states, and the line's own number."""
    try:
        line = json.loads(raw)
        return line["prev"], line["n"]
    except (ValueError, KeyError, TypeError, RecursionError):
        return None, None


def _end_faults(whole: Sequence[bytes], torn: bytes, head: ChainHead, unfinished: bool) -> Iterator[str]:
    if len(whole) < head.count:
        yield f"the end is cut off: {head.count} lines were written, {len(whole)} are there"
    elif len(whole) > head.count:
        yield f"{len(whole)} lines are there, and only {head.count} of them were written by a run"
    elif head.count and hash_of(whole[-1]) != head.hash:
        yield f"line {head.count} isn't the one that was written"
    if torn and (not unfinished or len(whole) != head.count):
        yield f"line {len(whole) + 1} is cut off in its middle"
