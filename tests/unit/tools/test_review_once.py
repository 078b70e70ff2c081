"""Each approved text leaves a run once: what the log refuses of releases and commands, however often they are tried."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from specollama.errors import UsageError
from specollama.tools.review.decisions import approval, edit, record, rejection
from specollama.tools.review.log_entries import (
    Failed,
    Marked,
    Ran,
    Released,
    Releasing,
    Running,
    Sent,
    Withdrawn,
    digest,
)
from specollama.tools.review.release import object_of, refuse_undecided
from specollama.tools.review.run_folder import Run, opened
from specollama.tools.review.state import Refused, Status
from tests.support.review_runs import first, run_of


@pytest.fixture
def run(tmp_path: Path) -> Iterator[Run]:
    """Two approved items."""
    with run_of(tmp_path / "run", a="Blue.", b="Green.") as run:
        for item in run.state.items.values():
            run.append("Ann", approval(item))
        yield run


def releasing(run: Run, file: str, *ids: str) -> Releasing:
    sent = tuple(Sent(id=id, digest=run.state.items[id].digest) for id in ids)
    return Releasing(file=file, draft=f".{file}", sha256="", items=sent)


def running(run: Run, id: str) -> Running:
    return Running(id=id, digest=run.state.items[id].digest, command=("send",))


def test_an_item_is_released_once(run: Run) -> None:
    with pytest.raises(Refused, match="twice"):
        run.append("Ann", releasing(run, "one", "a", "a"))
    run.append("Ann", releasing(run, "one", "a"))
    run.append("Ann", Released(file="one"))
    with pytest.raises(Refused, match="a: has been released already"):
        run.append("Ann", releasing(run, "two", "b", "a"))
    run.append("Ann", releasing(run, "two", "b"))


def test_a_release_begins_when_the_one_before_has_ended(run: Run) -> None:
    run.append("Ann", releasing(run, "one", "a"))
    with pytest.raises(Refused, match="a release was begun and hasn't ended"):
        run.append("Ann", releasing(run, "two", "b"))
    for entry in (Released(file="two"), Withdrawn(file="two")):
        with pytest.raises(Refused, match="no such release was begun"):
            run.append("Ann", entry)
    run.append("Ann", Withdrawn(file="one"))
    run.append("Ann", releasing(run, "two", "a", "b"))


@pytest.mark.parametrize("code", [None, 0, 1])
def test_a_command_is_run_again_only_if_it_never_began_or_a_person_says_that_nothing_went_out(
    run: Run, code: int | None
) -> None:
    run.append("Ann", running(run, "a"))
    with pytest.raises(Refused, match="a: its command was run before"):
        run.append("Ann", running(run, "a"))
    run.append("Ann", Ran(id="a", code=code))
    if code is not None:
        with pytest.raises(Refused, match="a: its command was run before"):
            run.append("Ann", running(run, "a"))
    if code == 1:
        run.append("Ann", Marked(id="a", sent=False))
    if code != 0:
        run.append("Ann", running(run, "a"))


def test_an_edited_text_begins_without_the_rejections_of_the_one_before(run: Run) -> None:
    item = run.state.items["a"]
    run.append("Ben", rejection(item, "too short"))
    run.append("Cy", edit(item, "Very blue."))
    assert (run.state.status(item), item.rejections, item.approvals) == (Status.OPEN, {}, {})
    run.append("Ann", approval(item))
    assert run.state.status(item) is Status.APPROVED


def test_a_reviewer_who_rejects_a_text_does_not_approve_it_any_more(run: Run) -> None:
    item = run.state.items["a"]
    run.append("Ann", rejection(item, "too short"))
    assert (item.approvals, item.rejections) == ({}, {"ann": ("Ann", "too short")})
    run.append("ANN", approval(item))
    assert (item.approvals, item.rejections) == ({"ann": "ANN"}, {})


def test_what_goes_out_has_the_digest_of_the_text_that_goes_out(run: Run) -> None:
    item = run.state.items["a"]
    run.append("Cy", edit(item, "Very blue."))
    assert (object_of(item)["text"], object_of(item)["digest"]) == ("Very blue.", digest("Very blue."))


def test_an_item_that_failed_is_not_decided(run: Run, tmp_path: Path) -> None:
    refuse_undecided(run)
    with opened(tmp_path / "failed", "machine") as other:
        other.append("machine", first(["a"]))
        other.append("machine", Failed(id="a", error="gone"))
        with pytest.raises(UsageError, match="1 failed"):
            refuse_undecided(other)


@pytest.mark.parametrize(
    ("decision", "given"),
    [
        ("approve", {"reason": "fine"}),
        ("edit", {"text": "Red.", "reason": "so"}),
        ("reject", {}),
        ("approve", {"text": "x"}),
    ],
)
def test_a_reason_goes_with_a_rejection_and_with_nothing_else(run: Run, decision: str, given: dict[str, str]) -> None:
    written = {"id": "a", "decision": decision, "digest": run.state.items["a"].digest, **given}
    with pytest.raises(UsageError, match="goes with"):
        record(run, "Ben", json.dumps(written), "standard input")
