"""Decisions: those of a reviewer at a terminal, and those that come as JSON lines."""

from __future__ import annotations

import difflib
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Literal, Self

from pydantic import Field, StringConstraints, model_validator

from specollama.config.schema import Table, misfit
from specollama.config.validation import Place, validated
from specollama.errors import UsageError, one_line
from specollama.tools.review.log_entries import Approved, Edited, Rejected
from specollama.tools.review.run_folder import Run
from specollama.tools.review.state import Item, Refused

Decision = Approved | Rejected | Edited


def approval(item: Item) -> Approved:
    return Approved(id=item.id, digest=item.digest)


def rejection(item: Item, reason: str) -> Rejected:
    return Rejected(id=item.id, digest=item.digest, reason=reason.strip())


def edit(item: Item, text: str) -> Edited:
    return Edited(id=item.id, digest=item.digest, text=text, difference=difference(item.text, text))


def difference(before: str, after: str) -> str:
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
            raise misfit("a reason goes with reject, and with nothing else", "reason")
        if (self.text is not None) != (self.decision == "edit"):
            raise misfit("a text goes with edit, and with nothing else", "text")
        return self


def record(run: Run, who: str, text: str, source: str) -> int:
    """Write the decisions of JSON lines, all or (when one can't be) none; how many these were.

    Raises UsageError naming the source, the line and what is wrong.
    """
    trial, decisions = run.state.trial(), list[Decision]()
    for number, line in enumerate(text.split("\n"), 1):
        if line.strip():
            place = Place(Path(f"{source}, line {number}"))
            try:
                decisions.append(_decision(_read(line, place), trial.items))
                trial.apply(who, decisions[-1])
            except Refused as error:
                raise UsageError(f"{place}: {error}; nothing of it was written") from error
    for decision in decisions:
        run.append(who, decision)
    return len(decisions)


def _read(line: str, place: Place) -> _Written:
    try:
        body = json.loads(line)
        json.dumps(body, ensure_ascii=False).encode()  # half of a surrogate pair can be written, but is no text
    except (ValueError, RecursionError) as error:
        raise UsageError(one_line(f"{place}: not JSON: {error}")) from error
    if not isinstance(body, dict):
        raise UsageError(f"{place}: must be an object with id, decision and digest")
    return validated(_Written, body, place)


def _decision(written: _Written, items: Mapping[str, Item]) -> Decision:
    if written.decision == "approve":
        return Approved(id=written.id, digest=written.digest)
    if written.decision == "reject":
        return Rejected(id=written.id, digest=written.digest, reason=written.reason or "")
    before, text = items[written.id].text if written.id in items else "", written.text or ""
    return Edited(id=written.id, digest=written.digest, text=text, difference=difference(before, text))
