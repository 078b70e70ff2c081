"""Each approved text leaves a run once: what the log refuses of releases and commands, however often they are tried."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from specollama.errors import UsageError
from specollama.tools.review.decisions import approve, edit, record_decisions, reject
from specollama.tools.review.log_entries import (
    CommandEnded,
    CommandMarked,
    CommandStarted,
    ItemFailed,
    ItemSent,
    ReleaseAnnounced,
    ReleaseDone,
    ReleaseWithdrawn,
    text_digest,
)
from specollama.tools.review.release import item_object, refuse_undecided
from specollama.tools.review.run_folder import ReviewRun, open_run
from specollama.tools.review.state import EntryRefused, ItemStatus
from tests.support.review_runs import first, run_of


@pytest.fixture
def run(tmp_path: Path) -> Iterator[ReviewRun]:
    """Two approved items."""
    with run_of(tmp_path / "run", a="Blue.", b="Green.") as run:
        for item in run.state.items.values():
            run.append("Ann", approve(item))
        yield run


def releasing(run: ReviewRun, file: str, *ids: str) -> ReleaseAnnounced:
    sent = tuple(ItemSent(id=id, digest=run.state.items[id].digest) for id in ids)
    return ReleaseAnnounced(file=file, draft=f".{file}", sha256="", items=sent)


def running(run: ReviewRun, id: str) -> CommandStarted:
    return CommandStarted(id=id, digest=run.state.items[id].digest, command=("send",))


def test_an_item_is_released_once(run: ReviewRun) -> None:
    with pytest.raises(EntryRefused, match="twice"):
        run.append("Ann", releasing(run, "one", "a", "a"))
    run.append("Ann", releasing(run, "one", "a"))
    run.append("Ann", ReleaseDone(file="one"))
    with pytest.raises(EntryRefused, match="a: has been released already"):
        run.append("Ann", releasing(run, "two", "b", "a"))
    run.append("Ann", releasing(run, "two", "b"))


def test_a_release_begins_when_the_one_before_has_ended(run: ReviewRun) -> None:
    run.append("Ann", releasing(run, "one", "a"))
    with pytest.raises(EntryRefused, match="a release was begun and hasn't ended"):
        run.append("Ann", releasing(run, "two", "b"))
    for entry in (ReleaseDone(file="two"), ReleaseWithdrawn(file="two")):
        with pytest.raises(EntryRefused, match="no such release was begun"):
            run.append("Ann", entry)
    run.append("Ann", ReleaseWithdrawn(file="one"))
    run.append("Ann", releasing(run, "two", "a", "b"))


@pytest.mark.parametrize("code", [None, 0, 1])
def test_a_command_is_run_again_only_if_it_never_began_or_a_person_says_that_nothing_went_out(
    run: ReviewRun, code: int | None
) -> None:
    run.append("Ann", running(run, "a"))
    with pytest.raises(EntryRefused, match="a: its command was run before"):
        run.append("Ann", running(run, "a"))
    run.append("Ann", CommandEnded(id="a", code=code))
    if code is not None:
        with pytest.raises(EntryRefused, match="a: its command was run before"):
            run.append("Ann", running(run, "a"))
    if code == 1:
        run.append("Ann", CommandMarked(id="a", sent=False))
    if code != 0:
        run.append("Ann", running(run, "a"))


def test_an_edited_text_begins_without_the_rejections_of_the_one_before(run: ReviewRun) -> None:
    item = run.state.items["a"]
    run.append("Ben", reject(item, "too short"))
    run.append("Cy", edit(item, "Very blue."))
    assert (run.state.status(item), item.rejections, item.approvals) == (ItemStatus.OPEN, {}, {})
    run.append("Ann", approve(item))
    assert run.state.status(item) is ItemStatus.APPROVED


def test_a_reviewer_who_rejects_a_text_does_not_approve_it_any_more(run: ReviewRun) -> None:
    item = run.state.items["a"]
    run.append("Ann", reject(item, "too short"))
    assert (item.approvals, item.rejections) == ({}, {"ann": ("Ann", "too short")})
    run.append("ANN", approve(item))
    assert (item.approvals, item.rejections) == ({"ann": "ANN"}, {})


def test_what_goes_out_has_the_digest_of_the_text_that_goes_out(run: ReviewRun) -> None:
    item = run.state.items["a"]
    run.append("Cy", edit(item, "Very blue."))
    assert (item_object(item)["text"], item_object(item)["digest"]) == ("Very blue.", text_digest("Very blue."))


def test_an_item_that_failed_is_not_decided(run: ReviewRun, tmp_path: Path) -> None:
    refuse_undecided(run)
    with open_run(tmp_path / "failed", "machine") as other:
        other.append("machine", first(["a"]))
        other.append("machine", ItemFailed(id="a", error="gone"))
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
def test_a_reason_goes_with_a_rejection_and_with_nothing_else(
    run: ReviewRun, decision: str, given: dict[str, str]
) -> None:
    written = {"id": "a", "decision": decision, "digest": run.state.items["a"].digest, **given}
    with pytest.raises(UsageError, match="goes with"):
        record_decisions(run, "Ben", json.dumps(written), "standard input")
