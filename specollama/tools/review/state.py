"""The state of a run: a fold over its log. What an entry may not do is refused here, before it is written.

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
    Answered,
    AnyEntry,
    Approved,
    Edited,
    Failed,
    Line,
    Marked,
    Opened,
    Ran,
    Recovered,
    Rejected,
    Released,
    Releasing,
    Running,
    Withdrawn,
    digest,
)


class Refused(UsageError):
    """The entry doesn't fit what is known of the run; nothing was written."""


class Status(StrEnum):
    """Where an item stands."""

    WAITING = "waiting"  # no reply yet
    FAILED = "failed"  # no reply: it was tried
    OPEN = "open"  # a text that isn't decided
    APPROVED = "approved"
    REJECTED = "rejected"


class Outgoing(StrEnum):
    """What became of an item's outbound command."""

    NOT_RUN = "not run"
    UNKNOWN = "unknown"  # it was begun, and no result was written
    SENT = "sent"
    FAILED = "failed"


@dataclass(slots=True)
class Item:
    """An item as the log has left it. Approvals and rejections are those of the present text, by reviewer."""

    id: str
    answer: Answered | None = None
    attempts: int = 0
    error: str = ""
    text: str = ""
    edits: list[Edited] = field(default_factory=list)  # of the present attempt
    approvals: dict[str, str] = field(default_factory=dict)  # the name as it was given, by what it is compared by
    rejections: dict[str, tuple[str, str]] = field(default_factory=dict)  # name and reason, likewise
    released: str = ""  # the file
    outgoing: Outgoing = Outgoing.NOT_RUN

    @property
    def digest(self) -> str:
        return digest(self.text)

    @property
    def gone(self) -> bool:
        """Whether the text may have left already: no decision changes it then."""
        return bool(self.released) or self.outgoing is not Outgoing.NOT_RUN

    def status(self, quorum: int) -> Status:
        if self.answer is None:
            return Status.FAILED if self.error else Status.WAITING
        if self.rejections:
            return Status.REJECTED
        return Status.APPROVED if len(self.approvals) >= quorum else Status.OPEN

    def decided_by(self, reviewer: str) -> bool:
        return identity(reviewer) in self.approvals.keys() | self.rejections.keys()


@dataclass(slots=True)
class State:
    """A run. `opened` None: nothing was written yet."""

    opened: Opened | None = None
    items: dict[str, Item] = field(default_factory=dict)
    releasing: Releasing | None = None  # announced, and not yet said to be there

    def trial(self) -> State:
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
        return State(self.opened, items, self.releasing)

    @property
    def quorum(self) -> int:
        return self.opened.quorum if self.opened else 1

    def status(self, item: Item) -> Status:
        return item.status(self.quorum)

    def having(self, *statuses: Status) -> list[Item]:
        """The items that stand so, in the order of the prompts."""
        return [item for item in self.items.values() if self.status(item) in statuses]

    def approved(self) -> list[Item]:
        return self.having(Status.APPROVED)

    def check(self, who: str, entry: AnyEntry) -> None:
        """Raises Refused when the entry doesn't fit."""
        if isinstance(entry, Opened):
            _unless(self.opened is None, "the run is open already")
            _unless(len(set(entry.items)) == len(entry.items), "two items have the same id")
        elif isinstance(entry, Released | Withdrawn):
            _unless(self.releasing is not None and self.releasing.file == entry.file, "no such release was begun")
        elif isinstance(entry, Releasing):
            _unless(self.releasing is None, "a release was begun and hasn't ended")
            _unless(len({sent.id for sent in entry.items}) == len(entry.items), "an item is to be released twice")
            for sent in entry.items:
                self._check_outgoing(sent.id, sent.digest)
                _unless(not self._item(sent.id).released, f"{sent.id}: has been released already")
        elif not isinstance(entry, Recovered):
            self._check_item(who, self._item(entry.id), entry)

    def apply(self, who: str, entry: AnyEntry) -> None:
        """The state after the entry. Raises Refused as `check` does, with the state as it was."""
        self.check(who, entry)
        if isinstance(entry, Opened):
            self.opened = entry
            self.items = {id: Item(id) for id in entry.items}
        elif isinstance(entry, Releasing):
            self.releasing = entry
            for sent in entry.items:
                self.items[sent.id].released = entry.file
        elif isinstance(entry, Released):
            self.releasing = None
        elif isinstance(entry, Withdrawn):
            for sent in self.releasing.items if self.releasing else ():
                self.items[sent.id].released = ""
            self.releasing = None
        elif not isinstance(entry, Recovered):
            _apply(who, self.items[entry.id], entry)

    def _item(self, id: str) -> Item:
        if id not in self.items:
            raise Refused(f"there is no item {id}")
        return self.items[id]

    def _check_item(self, who: str, item: Item, entry: _OfItem) -> None:
        name = item.id
        if isinstance(entry, Answered | Failed):
            _unless(not item.gone, f"{name}: its text may have gone out already")
            if isinstance(entry, Answered):
                _unless(entry.attempt == item.attempts + 1, f"{name}: attempt {entry.attempt} follows {item.attempts}")
                _unless(entry.digest == digest(entry.text), f"{name}: the digest isn't the text's")
                shown = "".join(piece.text for piece in entry.pieces)  # what a reviewer sees and decides on
                _unless(shown == entry.text, f"{name}: its pieces aren't the text")
        elif isinstance(entry, Approved | Rejected | Edited):
            _unless(bool(identity(who)), "a decision needs a reviewer's name")
            _unless(item.answer is not None, f"{name}: has no reply yet")
            _unless(not item.gone, f"{name}: its text may have gone out already; no decision changes that")
            _unless(entry.digest == item.digest, f"{name}: the decision is about another text than the present one")
            _unless(
                not isinstance(entry, Rejected) or bool(entry.reason.strip()), f"{name}: a rejection needs a reason"
            )
            _unless(not isinstance(entry, Edited) or entry.text != item.text, f"{name}: the edit changes nothing")
        elif isinstance(entry, Running):
            self._check_outgoing(entry.id, entry.digest)
            _unless(item.outgoing is Outgoing.NOT_RUN, f"{name}: its command was run before")
        elif isinstance(entry, Ran):
            _unless(item.outgoing is Outgoing.UNKNOWN, f"{name}: no command is running")
        else:
            by_hand = item.outgoing in (Outgoing.UNKNOWN, Outgoing.FAILED)
            _unless(by_hand, f"{name}: {item.outgoing}; there is nothing to decide by hand")

    def _check_outgoing(self, id: str, seen: str) -> None:
        item = self._item(id)
        _unless(self.status(item) is Status.APPROVED, f"{id}: isn't approved")
        _unless(seen == item.digest, f"{id}: another text was approved")


_OfItem = Answered | Failed | Approved | Rejected | Edited | Running | Ran | Marked


def _apply(who: str, item: Item, entry: _OfItem) -> None:
    match entry:
        case Answered():
            item.answer, item.attempts, item.error = entry, entry.attempt, ""
            item.edits = []
            _new_text(item, entry.text)
        case Failed():
            item.error = entry.error
        case Approved():
            item.approvals[identity(who)] = who
            item.rejections.pop(identity(who), None)
        case Rejected():
            item.rejections[identity(who)] = who, entry.reason
            item.approvals.pop(identity(who), None)
        case Edited():
            item.edits.append(entry)
            _new_text(item, entry.text)
        case Running():
            item.outgoing = Outgoing.UNKNOWN
        case Ran():
            never = Outgoing.NOT_RUN if entry.code is None else Outgoing.FAILED
            item.outgoing = Outgoing.SENT if entry.code == 0 else never
        case Marked():
            item.outgoing = Outgoing.SENT if entry.sent else Outgoing.NOT_RUN
        case _:
            assert_never(entry)


def _new_text(item: Item, text: str) -> None:
    item.text = text
    item.approvals.clear()
    item.rejections.clear()


def _unless(sound: bool, fault: str) -> None:
    if not sound:
        raise Refused(fault)


def identity(reviewer: str) -> str:
    """What reviewers are told apart by: case, white space and the form of a letter don't make another person."""
    return " ".join(unicodedata.normalize("NFKC", reviewer).casefold().split())


def fold(lines: Iterable[Line]) -> State:
    """The state after all lines. Raises Refused, naming the line, for one that doesn't fit those before."""
    state = State()
    for line in lines:
        try:
            if state.opened is None and not isinstance(line.entry, Opened | Recovered):
                raise Refused("the run isn't open yet")
            state.apply(line.who, line.entry)
        except Refused as error:
            raise Refused(f"line {line.n}: {error}") from None
    return state


def as_object(state: State) -> Mapping[str, object]:
    """The run as one JSON object, its items in the order of the prompts."""
    return {"quorum": state.quorum, "items": [_item_object(state, item) for item in state.items.values()]}


def _item_object(state: State, item: Item) -> Mapping[str, object]:
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
