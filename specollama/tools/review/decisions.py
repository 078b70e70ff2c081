"""Decisions: those of a reviewer at a terminal, and those that come as JSON lines."""

from __future__ import annotations

import difflib
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Literal, Self

from pydantic import Field, StringConstraints, model_validator

from specollama.config.schema import Table, table_error
from specollama.config.validation import ConfigLocation, validate_table
from specollama.errors import UsageError, one_line
from specollama.tools.review.log_entries import ItemApproved, ItemEdited, ItemRejected
from specollama.tools.review.run_folder import ReviewRun
from specollama.tools.review.state import EntryRefused, ReviewItem

Decision = ItemApproved | ItemRejected | ItemEdited


def approve(item: ReviewItem) -> ItemApproved:
    return ItemApproved(id=item.id, digest=item.digest)


def reject(item: ReviewItem, reason: str) -> ItemRejected:
    return ItemRejected(id=item.id, digest=item.digest, reason=reason.strip())


def edit(item: ReviewItem, text: str) -> ItemEdited:
    return ItemEdited(id=item.id, digest=item.digest, text=text, difference=unified_difference(item.text, text))


def unified_difference(before: str, after: str) -> str:
    """A unified diff, with three lines around each change."""
    lines = difflib.unified_diff(before.split("\n"), after.split("\n"), "before", "after", lineterm="")
    return "\n".join(lines)


class _Written(Table):
    """A decision as a script gives it. `digest`: of the text that it is about."""

    id: Annotated[str, StringConstraints(min_length=1)] = Field(examples=['"a"'])
    decision: Literal["approve", "reject", "edit"] = Field(examples=['"approve"'])
    digest: str = Field(examples=['"(as `specollama review RUN --json` gives it)"'])
    reason: str | None = None
    text: str | None = None

    @model_validator(mode="after")
    def _check_belongings(self) -> Self:
        if (self.reason is not None) != (self.decision == "reject"):
            raise table_error("a reason goes with reject, and with nothing else", "reason")
        if (self.text is not None) != (self.decision == "edit"):
            raise table_error("a text goes with edit, and with nothing else", "text")
        return self


def record_decisions(run: ReviewRun, who: str, text: str, source: str) -> int:
    """Write the decisions of JSON lines, all or (when one can't be) none; how many these were.

    Raises UsageError naming the source, the line and what is wrong.
    """
    trial, decisions = run.state.copy(), list[Decision]()
    for number, line in enumerate(text.split("\n"), 1):
        if line.strip():
            place = ConfigLocation(Path(f"{source}, line {number}"))
            try:
                decisions.append(_decision(_read(line, place), trial.items))
                trial.apply(who, decisions[-1])
            except EntryRefused as error:
                raise UsageError(f"{place}: {error}; nothing of it was written") from error
    for decision in decisions:
        run.append(who, decision)
    return len(decisions)


def _read(line: str, place: ConfigLocation) -> _Written:
    try:
        body = json.loads(line)
        json.dumps(body, ensure_ascii=False).encode()  # half of a surrogate pair can be written, but is no text
    except (ValueError, RecursionError) as error:
        raise UsageError(one_line(f"{place}: not JSON: {error}")) from error
    if not isinstance(body, dict):
        raise UsageError(f"{place}: must be an object with id, decision and digest")
    return validate_table(_Written, body, place)


def _decision(written: _Written, items: Mapping[str, ReviewItem]) -> Decision:
    if written.decision == "approve":
        return ItemApproved(id=written.id, digest=written.digest)
    if written.decision == "reject":
        return ItemRejected(id=written.id, digest=written.digest, reason=written.reason or "")
    before, text = items[written.id].text if written.id in items else "", written.text or ""
    return ItemEdited(id=written.id, digest=written.digest, text=text, difference=unified_difference(before, text))
