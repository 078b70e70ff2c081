"""Repair of a damaged log: the longest valid chain of its lines stays, and the rest is set aside."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

from pydantic import ValidationError

from specollama.config.atomic_file import sync
from specollama.errors import RunError, one_line
from specollama.tools.review.hash_chain import ChainHead, hash_of, stated_place
from specollama.tools.review.log_entries import (
    CommandStarted,
    LogLine,
    LogRepaired,
    ReleaseAnnounced,
    RunOpened,
)
from specollama.tools.review.run_folder import (
    HEAD,
    LOG,
    lock_folder,
    open_run,
    read_plain,
    refuse_missing,
    replace_file,
    verify_log,
    write_durably,
)
from specollama.tools.review.state import EntryRefused, RunState


@dataclass(frozen=True, slots=True)
class Repaired:
    """What a repair did: the number of lines `kept`, the file `aside` with the others, and what those say (`moved`)."""

    kept: int
    aside: Path
    moved: Sequence[str]


def repair_run(folder: Path, who: str) -> Repaired | None:
    """Keep the longest valid chain of the log's lines, and set the rest aside. None where nothing is wrong.

    The log says itself that it was repaired. Raises RunError when no line can be kept, and as `verify_log` does.
    """
    refuse_missing(folder)
    if not verify_log(folder)[1]:
        return None
    with lock_folder(folder):
        log = read_plain(folder / LOG) or b""
        *whole, torn = log.split(b"\n")
        chain = longest_valid_chain(whole)
        if not chain:
            raise RunError(one_line(f"{folder / LOG}: none of its lines can be kept; it stays as it is"))
        left = [raw for place, raw in enumerate(whole) if place not in set(chain)] + ([torn] if torn else [])
        aside = folder / f"aside-{datetime.now(UTC):%Y%m%dT%H%M%S%f}.jsonl"
        rest = b"".join(raw + b"\n" for raw in left)
        write_durably(aside, rest)
        sync(folder)
        kept = [whole[place] for place in chain]
        replace_file(folder / LOG, b"".join(raw + b"\n" for raw in kept))
        head = ChainHead(count=len(kept), hash=hash_of(kept[-1]))
        replace_file(folder / HEAD, head.model_dump_json(exclude_none=True).encode())
    with open_run(folder, who) as run:
        run.append(who, LogRepaired(cut=len(rest)))
    return Repaired(len(kept), aside, [_describe(raw) for raw in left])


def longest_valid_chain(whole: Sequence[bytes]) -> list[int]:
    """The places of the lines that form the longest chain from a first line, and whose entries fit one another.

    Of two writers who went on from the same line, the one with more lines is kept; of equal ones, the first.
    """
    depth, parent = dict[str, int](), dict[str, str]()
    at = dict[str, int]()
    for place, before, own in sorted(_linked(whole), key=lambda line: (line[2], line[0])):
        line = hash_of(whole[place])
        if line not in at and own == depth.get(before, 0 if before == "" else -1) + 1:
            depth[line], parent[line], at[line] = own, before, place
    best = list[int]()
    for line in sorted(depth, key=lambda line: -depth[line]):
        if depth[line] > len(best):
            chain = _valid_start([at[each] for each in _path(line, parent)], whole)
            best = chain if len(chain) > len(best) else best
    return best


def _linked(whole: Sequence[bytes]) -> Iterator[tuple[int, str, int]]:
    """Place of each line that can be read, the hash that it follows, and the number that it states."""
    for place, raw in enumerate(whole):
        before, own = stated_place(raw)
        if isinstance(before, str) and isinstance(own, int):
            yield place, before, own


def _path(line: str, parent: dict[str, str]) -> list[str]:
    """From the first line to this one."""
    path = list[str]()
    while line:
        path.append(line)
        line = parent[line]
    return path[::-1]


def _valid_start(places: Sequence[int], whole: Sequence[bytes]) -> list[int]:
    """The lines up to the first that can't be read or says what the state before it doesn't allow."""
    state, valid = RunState(), list[int]()
    for place in places:
        try:
            line = LogLine.model_validate(json.loads(whole[place]))
            if state.opened is None and not isinstance(line.entry, RunOpened | LogRepaired):
                break
            state.apply(line.who, line.entry)
        except (ValueError, RecursionError, EntryRefused):
            break
        valid.append(place)
    return valid


def _describe(raw: bytes) -> str:
    """What a line that was set aside says."""
    try:
        line = LogLine.model_validate(json.loads(raw))
    except (ValidationError, ValueError, RecursionError):
        return f"{len(raw)} bytes that aren't an entry"
    entry = line.entry
    about = getattr(entry, "id", "") or getattr(entry, "file", "")
    words = f"line {line.n}, {line.who}: {entry.kind} {about}".rstrip()
    if isinstance(entry, CommandStarted | ReleaseAnnounced):
        words += " (it may have gone out: look, before it is released again)"
    return one_line(words)
