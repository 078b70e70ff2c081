"""The state of a run: a fold over its log. A forbidden entry is refused here, before it is written.

Decisions bind to the digest of a text. A text is approved when enough different reviewers approve exactly it and nobody
rejects it; another text, edited or regenerated, begins without decisions.
"""

from __future__ import annotations

import unicodedata
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from enum import StrEnum
from typing import assert_never

from specollama.errors import UsageError
from specollama.tools.review.log_entries import (
    AnyEntry,
    CommandEnded,
    CommandMarked,
    CommandStarted,
    ItemAnswered,
    ItemApproved,
    ItemEdited,
    ItemFailed,
    ItemRejected,
    LogLine,
    LogRepaired,
    ReleaseAnnounced,
    ReleaseDone,
    ReleaseWithdrawn,
    RunOpened,
    text_digest,
)


class EntryRefused(UsageError):
    """The entry contradicts the state of the run; nothing was written."""


class ItemStatus(StrEnum):
    """Status of an item."""

    WAITING = "waiting"  # no reply yet
    FAILED = "failed"  # no reply: it was tried
    OPEN = "open"  # a text that isn't decided
    APPROVED = "approved"
    REJECTED = "rejected"


class CommandStatus(StrEnum):
    """Outcome of an item's outbound command."""

    NOT_RUN = "not run"
    UNKNOWN = "unknown"  # it was begun, and no result was written
    SENT = "sent"
    FAILED = "failed"


@dataclass(slots=True)
class ReviewItem:
    """An item as the log has left it. Approvals and rejections are those of the present text, by reviewer."""

    id: str
    answer: ItemAnswered | None = None
    attempts: int = 0
    error: str = ""
    text: str = ""
    edits: list[ItemEdited] = field(default_factory=list)  # of the present attempt
    approvals: dict[str, str] = field(default_factory=dict)  # the name as it was given, by what it is compared by
    rejections: dict[str, tuple[str, str]] = field(default_factory=dict)  # name and reason, likewise
    released: str = ""  # the file
    outgoing: CommandStatus = CommandStatus.NOT_RUN

    @property
    def digest(self) -> str:
        return text_digest(self.text)

    @property
    def gone(self) -> bool:
        """Whether the text may have left already: no decision changes it then."""
        return bool(self.released) or self.outgoing is not CommandStatus.NOT_RUN

    def status(self, quorum: int) -> ItemStatus:
        if self.answer is None:
            return ItemStatus.FAILED if self.error else ItemStatus.WAITING
        if self.rejections:
            return ItemStatus.REJECTED
        return ItemStatus.APPROVED if len(self.approvals) >= quorum else ItemStatus.OPEN

    def decided_by(self, reviewer: str) -> bool:
        return reviewer_identity(reviewer) in self.approvals.keys() | self.rejections.keys()


@dataclass(slots=True)
class RunState:
    """A run. `opened` None: nothing was written yet."""

    opened: RunOpened | None = None
    items: dict[str, ReviewItem] = field(default_factory=dict)
    releasing: ReleaseAnnounced | None = None  # announced, and not yet said to be there

    def copy(self) -> RunState:
        """The same, to try entries on."""
        items = {
            id: replace(
                item,
                edits=list(item.edits),
                approvals=dict(item.approvals),
                rejections=dict(item.rejections),
            )
            for id, item in self.items.items()
        }
        return RunState(self.opened, items, self.releasing)

    @property
    def quorum(self) -> int:
        return self.opened.quorum if self.opened else 1

    def status(self, item: ReviewItem) -> ItemStatus:
        return item.status(self.quorum)

    def with_status(self, *statuses: ItemStatus) -> list[ReviewItem]:
        """The items that stand so, in the order of the prompts."""
        return [item for item in self.items.values() if self.status(item) in statuses]

    def approved(self) -> list[ReviewItem]:
        return self.with_status(ItemStatus.APPROVED)

    def check(self, who: str, entry: AnyEntry) -> None:
        """Raises EntryRefused when the entry doesn't fit."""
        if isinstance(entry, RunOpened):
            _unless(self.opened is None, "the run is open already")
            _unless(len(set(entry.items)) == len(entry.items), "two items have the same id")
        elif isinstance(entry, ReleaseDone | ReleaseWithdrawn):
            _unless(self.releasing is not None and self.releasing.file == entry.file, "no such release was begun")
        elif isinstance(entry, ReleaseAnnounced):
            _unless(self.releasing is None, "a release was begun and hasn't ended")
            _unless(len({sent.id for sent in entry.items}) == len(entry.items), "an item is to be released twice")
            for sent in entry.items:
                self._check_outgoing(sent.id, sent.digest)
                _unless(not self._item(sent.id).released, f"{sent.id}: has been released already")
        elif not isinstance(entry, LogRepaired):
            self._check_item(who, self._item(entry.id), entry)

    def apply(self, who: str, entry: AnyEntry) -> None:
        """The state after the entry. Raises EntryRefused as `check` does, with the state as it was."""
        self.check(who, entry)
        if isinstance(entry, RunOpened):
            self.opened = entry
            self.items = {id: ReviewItem(id) for id in entry.items}
        elif isinstance(entry, ReleaseAnnounced):
            self.releasing = entry
            for sent in entry.items:
                self.items[sent.id].released = entry.file
        elif isinstance(entry, ReleaseDone):
            self.releasing = None
        elif isinstance(entry, ReleaseWithdrawn):
            for sent in self.releasing.items if self.releasing else ():
                self.items[sent.id].released = ""
            self.releasing = None
        elif not isinstance(entry, LogRepaired):
            _apply(who, self.items[entry.id], entry)

    def _item(self, id: str) -> ReviewItem:
        if id not in self.items:
            raise EntryRefused(f"there is no item {id}")
        return self.items[id]

    def _check_item(self, who: str, item: ReviewItem, entry: _OfItem) -> None:
        name = item.id
        if isinstance(entry, ItemAnswered | ItemFailed):
            _unless(not item.gone, f"{name}: its text may have gone out already")
            if isinstance(entry, ItemAnswered):
                _unless(entry.attempt == item.attempts + 1, f"{name}: attempt {entry.attempt} follows {item.attempts}")
                _unless(entry.digest == text_digest(entry.text), f"{name}: the digest isn't the text's")
                shown = "".join(piece.text for piece in entry.pieces)  # what a reviewer sees and decides on
                _unless(shown == entry.text, f"{name}: its pieces aren't the text")
        elif isinstance(entry, ItemApproved | ItemRejected | ItemEdited):
            _unless(bool(reviewer_identity(who)), "a decision needs a reviewer's name")
            _unless(item.answer is not None, f"{name}: has no reply yet")
            _unless(not item.gone, f"{name}: its text may have gone out already; no decision changes that")
            _unless(entry.digest == item.digest, f"{name}: the decision is about another text than the present one")
            _unless(
                not isinstance(entry, ItemRejected) or bool(entry.reason.strip()), f"{name}: a rejection needs a reason"
            )
            _unless(not isinstance(entry, ItemEdited) or entry.text != item.text, f"{name}: the edit changes nothing")
        elif isinstance(entry, CommandStarted):
            self._check_outgoing(entry.id, entry.digest)
            _unless(item.outgoing is CommandStatus.NOT_RUN, f"{name}: its command was run before")
        elif isinstance(entry, CommandEnded):
            _unless(item.outgoing is CommandStatus.UNKNOWN, f"{name}: no command is running")
        else:
            by_hand = item.outgoing in (CommandStatus.UNKNOWN, CommandStatus.FAILED)
            _unless(by_hand, f"{name}: {item.outgoing}; there is nothing to decide by hand")

    def _check_outgoing(self, id: str, seen: str) -> None:
        item = self._item(id)
        _unless(self.status(item) is ItemStatus.APPROVED, f"{id}: isn't approved")
        _unless(seen == item.digest, f"{id}: another text was approved")


_OfItem = (
    ItemAnswered | ItemFailed | ItemApproved | ItemRejected | ItemEdited | CommandStarted | CommandEnded | CommandMarked
)


def _apply(who: str, item: ReviewItem, entry: _OfItem) -> None:
    match entry:
        case ItemAnswered():
            item.answer, item.attempts, item.error = entry, entry.attempt, ""
            item.edits = []
            _new_text(item, entry.text)
        case ItemFailed():
            item.error = entry.error
        case ItemApproved():
            item.approvals[reviewer_identity(who)] = who
            item.rejections.pop(reviewer_identity(who), None)
        case ItemRejected():
            item.rejections[reviewer_identity(who)] = who, entry.reason
            item.approvals.pop(reviewer_identity(who), None)
        case ItemEdited():
            item.edits.append(entry)
            _new_text(item, entry.text)
        case CommandStarted():
            item.outgoing = CommandStatus.UNKNOWN
        case CommandEnded():
            never = CommandStatus.NOT_RUN if entry.code is None else CommandStatus.FAILED
            item.outgoing = CommandStatus.SENT if entry.code == 0 else never
        case CommandMarked():
            item.outgoing = CommandStatus.SENT if entry.sent else CommandStatus.NOT_RUN
        case _:
            assert_never(entry)


def _new_text(item: ReviewItem, text: str) -> None:
    item.text = text
    item.approvals.clear()
    item.rejections.clear()


def _unless(sound: bool, fault: str) -> None:
    if not sound:
        raise EntryRefused(fault)


def reviewer_identity(reviewer: str) -> str:
    """Key that identifies a reviewer: case, white space and Unicode form are ignored."""
    return " ".join(unicodedata.normalize("NFKC", reviewer).casefold().split())


def fold(lines: Iterable[LogLine]) -> RunState:
    """The state after all lines. Raises EntryRefused, naming the line, for one that doesn't fit those before."""
    state = RunState()
    for line in lines:
        try:
            if state.opened is None and not isinstance(line.entry, RunOpened | LogRepaired):
                raise EntryRefused("the run isn't open yet")
            state.apply(line.who, line.entry)
        except EntryRefused as error:
            raise EntryRefused(f"line {line.n}: {error}") from None
    return state


def as_object(state: RunState) -> Mapping[str, object]:
    """The run as one JSON object, its items in the order of the prompts."""
    return {"quorum": state.quorum, "items": [_item_object(state, item) for item in state.items.values()]}


def _item_object(state: RunState, item: ReviewItem) -> Mapping[str, object]:
    answer = item.answer
    return {
        "id": item.id,
        "status": str(state.status(item)),
        "text": item.text if answer else None,
        "digest": item.digest if answer else None,
        "messages": answer.messages if answer else [],
        "metadata": answer.metadata if answer else {},
        "attempt": item.attempts,
        "seed": answer.seed if answer else None,
        "approved_by": list(item.approvals.values()),
        "rejected_by": [{"reviewer": name, "reason": reason} for name, reason in item.rejections.values()],
        "edits": [edit.difference for edit in item.edits],
        "error": item.error,
        "stats": answer.stats if answer else None,
        "released": item.released or None,
        "command": str(item.outgoing),
    }
