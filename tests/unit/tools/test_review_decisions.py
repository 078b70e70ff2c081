"""What is approved: decided by tiny cases, and by random sequences of all that people and commands can do."""

from __future__ import annotations

import itertools
import json
import tempfile
from collections import Counter
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from specollama.errors import RunError, UsageError
from specollama.tools.review.decisions import approve, edit, record_decisions, reject
from specollama.tools.review.log_entries import (
    CommandMarked,
    CommandStarted,
    Entry,
    ItemApproved,
    ItemEdited,
    ItemRejected,
    ItemSent,
    ReleaseAnnounced,
    text_digest,
)
from specollama.tools.review.release import (
    OutboundCommand,
    items_to_release,
    items_to_run,
    refuse_undecided,
    unresolved_items,
    write_release,
)
from specollama.tools.review.run_folder import ReviewRun, open_run
from specollama.tools.review.state import CommandStatus, EntryRefused, ItemStatus
from tests.support.draws import examples
from tests.support.review_runs import answered, first, run_of, synced


@pytest.fixture
def run(tmp_path: Path) -> Iterator[ReviewRun]:
    """Two items, each of which two reviewers must approve."""
    with run_of(tmp_path / "run", quorum=2, a="Blue.", b="Green.") as run:
        yield run


def status(run: ReviewRun, id: str = "a") -> ItemStatus:
    return run.state.status(run.state.items[id])


def test_a_text_is_approved_when_enough_reviewers_approve_it(run: ReviewRun) -> None:
    item = run.state.items["a"]
    run.append("Ann", approve(item))
    assert status(run) is ItemStatus.OPEN
    run.append("Ben", approve(item))
    assert status(run) is ItemStatus.APPROVED


@pytest.mark.parametrize("again", ["Ann", "ann", " ANN ", "Ａｎｎ", "Ann\u00a0"])
def test_one_reviewer_counts_once_however_the_name_is_written(run: ReviewRun, again: str) -> None:
    item = run.state.items["a"]
    run.append("Ann", approve(item))
    run.append(again, approve(item))
    assert (len(item.approvals), status(run)) == (1, ItemStatus.OPEN)


def test_an_edit_and_a_new_reply_begin_without_decisions(run: ReviewRun) -> None:
    item = run.state.items["a"]
    for who in ("Ann", "Ben"):
        run.append(who, approve(item))
    run.append("Ann", edit(item, "Very blue."))
    assert (item.text, status(run), item.approvals) == ("Very blue.", ItemStatus.OPEN, {})
    assert item.edits[-1].difference.splitlines()[-2:] == ["-Blue.", "+Very blue."]

    for who in ("Ann", "Ben"):
        run.append(who, approve(item))
    run.append("machine", answered("a", "Very blue.", attempt=2))
    assert (status(run), item.edits) == (ItemStatus.OPEN, [])


def test_one_rejection_outweighs_approvals_until_its_reviewer_thinks_better_of_it(run: ReviewRun) -> None:
    item = run.state.items["a"]
    for who in ("Ann", "Ben"):
        run.append(who, approve(item))
    run.append("Cy", reject(item, "too short"))
    assert (status(run), item.rejections) == (ItemStatus.REJECTED, {"cy": ("Cy", "too short")})
    run.append("Cy", approve(item))
    assert status(run) is ItemStatus.APPROVED


@pytest.mark.parametrize(
    ("entry", "words"),
    [
        (ItemApproved(id="a", digest=text_digest("Blue")), "about another text"),
        (ItemApproved(id="c", digest=text_digest("Blue.")), "there is no item c"),
        (ItemRejected(id="a", digest=text_digest("Blue."), reason=" "), "needs a reason"),
        (ItemEdited(id="a", digest=text_digest("Blue."), text="Blue.", difference=""), "changes nothing"),
        (CommandStarted(id="a", digest=text_digest("Blue."), command=("true",)), "isn't approved"),
        (CommandMarked(id="a", sent=True), "nothing to decide by hand"),
        (answered("a", "Red.", attempt=1), "attempt 1 follows 1"),
        (
            answered("a", "Red.", attempt=2).model_copy(update={"digest": text_digest("Blue.")}),
            "the digest isn't the text's",
        ),
        (
            answered("a", "Red.", attempt=2).model_copy(update={"pieces": answered("a", "Blue.").pieces}),
            "its pieces aren't the text",
        ),
        (first(["a"]), "open already"),
    ],
)
def test_what_does_not_fit_is_refused_and_not_written(run: ReviewRun, entry: Entry, words: str) -> None:
    before = (run.folder / "log.jsonl").read_bytes()
    with pytest.raises(EntryRefused, match=words):
        run.append("Ann", entry)  # type: ignore[arg-type]
    assert (run.folder / "log.jsonl").read_bytes() == before
    assert status(run) is ItemStatus.OPEN


@pytest.mark.parametrize("way", ["file", "command"])
def test_no_other_text_goes_out_than_the_one_that_was_approved(run: ReviewRun, way: str) -> None:
    for who in ("Ann", "Ben"):
        run.append(who, approve(run.state.items["a"]))
    before, other = (run.folder / "log.jsonl").read_bytes(), text_digest("Blue")
    entry = (
        CommandStarted(id="a", digest=other, command=("true",))
        if way == "command"
        else ReleaseAnnounced(file="/f", draft="/d", sha256="", items=(ItemSent(id="a", digest=other),))
    )
    with pytest.raises(EntryRefused, match="a: another text was approved"):
        run.append("Ann", entry)
    assert (run.folder / "log.jsonl").read_bytes() == before
    assert not run.state.items["a"].gone


def test_a_release_is_on_the_disk_before_it_is_announced_and_before_it_is_said_to_be_there(
    run: ReviewRun, tmp_path: Path
) -> None:
    for who in ("Ann", "Ben"):
        run.append(who, approve(run.state.items["a"]))
    (out := tmp_path / "out").mkdir()
    with synced(run.folder, out) as on_disk:
        write_release(run, "Ann", out / "a.jsonl")
    names = [each.partition(":")[0] for each in on_disk]
    content = (out / "a.jsonl").read_text()
    first, second = (place for place, name in enumerate(names) if name == "log.jsonl")
    assert on_disk[0].endswith(f": {content}")
    assert names[1] == "out"
    assert '"releasing"' in on_disk[first].splitlines()[-1]
    assert names[first:second].count("out") == 2, "without the draft's name, and with the file's"
    assert '"released"' in on_disk[second].splitlines()[-1]


def test_decisions_of_a_script_are_written_all_or_none(run: ReviewRun) -> None:
    good = json.dumps({"id": "a", "decision": "approve", "digest": text_digest("Blue.")})
    stale = json.dumps({"id": "b", "decision": "reject", "digest": text_digest("Blue."), "reason": "no"})
    with pytest.raises(UsageError, match=r"d, line 2: b: the decision is about another .* nothing of it was written"):
        record_decisions(run, "Ann", f"{good}\n{stale}\n", "d")
    assert run.state.items["a"].approvals == {}

    edited = json.dumps({"id": "b", "decision": "edit", "digest": text_digest("Green."), "text": "Mint."})
    then = json.dumps({"id": "b", "decision": "approve", "digest": text_digest("Mint.")})
    assert record_decisions(run, "Ann", f"{good}\n{edited}\n\n{then}\n", "d") == 3
    assert [run.state.items[id].approvals for id in "ab"] == [{"ann": "Ann"}] * 2
    assert run.state.items["b"].edits[0].difference.endswith("-Green.\n+Mint.")


@pytest.mark.parametrize(
    ("line", "words"),
    [
        ("approve a", "d, line 1: not JSON"),
        ("[]", "must be an object"),
        ('{"id": "a", "decision": "approve"}', "d, line 1: digest: missing"),
        ('{"id": "a", "decision": "aprove", "digest": ""}', "decision"),
        ('{"id": "a", "decision": "reject", "digest": ""}', "a reason goes with reject"),
        ('{"id": "a", "decision": "approve", "digest": "", "text": "x"}', "a text goes with edit"),
        ('{"id": "a", "decision": "approve", "digest": "", "who": "x"}', 'who = "x": unknown key'),
    ],
)
def test_what_is_no_decision_is_told_with_its_line(run: ReviewRun, line: str, words: str) -> None:
    with pytest.raises(UsageError, match=words):
        record_decisions(run, "Ann", line, "d")


def test_a_release_waits_for_every_decision(run: ReviewRun) -> None:
    for who in ("Ann", "Ben"):
        run.append(who, approve(run.state.items["a"]))
    with pytest.raises(UsageError, match="1 not decided"):
        refuse_undecided(run)
    run.append("Ann", reject(run.state.items["b"], "wrong"))
    refuse_undecided(run)
    assert [item.id for item in items_to_release(run.state)] == ["a"]


# Random sequences: whatever people do in whatever order, what leaves was approved as it is, and leaves once.

REVIEWERS = ["Ann", "Ben", "Cy"]
TEXTS = ["Blue.", "Green.", "Red."]


@dataclass
class Oracle:
    """What each reviewer last said of the text that is there, told apart from the program's own bookkeeping."""

    texts: dict[str, str]
    said: dict[str, dict[str, bool]] = field(default_factory=dict)

    def changed(self, id: str, text: str) -> None:
        self.texts[id], self.said[id] = text, {}

    def approved(self, id: str, text: str, quorum: int) -> bool:
        said = self.said.get(id, {}).values()
        return self.texts[id] == text and all(said) and sum(said) >= quorum


WHATS = [
    *(["approve"] * 6 + ["approve another text", "reject"] + ["edit"] * 2 + ["regenerate"]),
    *(["write"] * 2 + ["send"] * 2 + ["fail", "crash", "sent", "not sent"]),
]
STEPS = st.tuples(st.sampled_from(WHATS), st.sampled_from("ab"), st.sampled_from(REVIEWERS), st.sampled_from(TEXTS))


@examples(30)
@given(steps=st.lists(STEPS, min_size=12, max_size=30), quorum=st.integers(1, 2))
def test_nothing_unapproved_ever_leaves(steps: list[tuple[str, str, str, str]], quorum: int) -> None:
    with tempfile.TemporaryDirectory() as place:
        folder, sent, again = Path(place), Path(place, "sent.jsonl"), set[str]()
        oracle, names = Oracle({"a": "Blue.", "b": "Green."}), itertools.count()
        left = Counter[tuple[str, str]]()
        with run_of(folder / "run", quorum=quorum, a="Blue.", b="Green.") as run:
            for what, id, who, text in steps:
                with suppress(EntryRefused, UsageError, RunError):
                    one_step(run, oracle, what, id, who, text, folder / f"out-{next(names)}.jsonl", sent)
                    if what == "not sent":
                        again.add(id)
                leaving = Counter(outputs(folder))
                for gone, words in leaving - left:
                    assert oracle.approved(gone, words, quorum), (gone, words)
                left = leaving
        written = [id for file in folder.glob("out-*.jsonl") for id, _ in lines(file)]
        assert len(written) == len(set(written))
        ran = [id for id, _ in lines(sent) if id not in again]  # a person said of the others that they may go again
        assert len(ran) == len(set(ran))
        with open_run(folder / "run", "Ann") as reread:
            assert {id: item.text for id, item in reread.state.items.items()} == oracle.texts


def one_step(run: ReviewRun, oracle: Oracle, what: str, id: str, who: str, text: str, out: Path, sent: Path) -> None:
    item = run.state.items[id]
    if what == "approve":
        run.append(who, approve(item))
        oracle.said.setdefault(id, {})[who] = True
    elif what == "approve another text":
        run.append(who, ItemApproved(id=id, digest=text_digest(text)))
        oracle.said.setdefault(id, {})[who] = oracle.texts[id] == text
    elif what == "reject":
        run.append(who, reject(item, "no"))
        oracle.said.setdefault(id, {})[who] = False
    elif what == "edit":
        run.append(who, edit(item, text))
        oracle.changed(id, text)
    elif what == "regenerate":
        run.append("machine", answered(id, text, item.attempts + 1))
        oracle.changed(id, text)
    elif what == "write":
        write_release(run, who, out)
    elif what == "crash":  # the intent is there, and the process dies
        run.append(who, CommandStarted(id=id, digest=item.digest, command=("tee",)))
    elif what in ("send", "fail"):
        command = ["tee", "-a", str(sent)] if what == "send" else ["tee", "-a", str(sent), "/nowhere/at/all"]
        OutboundCommand(run, who, command, lambda id: None).send_all(items_to_run(run.state, again=True))
    else:
        run.append(who, CommandMarked(id=id, sent=what == "sent"))


def outputs(folder: Path) -> list[tuple[str, str]]:
    """All that left."""
    return [line for file in [*folder.glob("out-*.jsonl"), folder / "sent.jsonl"] for line in lines(file)]


def lines(file: Path) -> list[tuple[str, str]]:
    if not file.exists():
        return []
    return [(line["id"], line["text"]) for line in map(json.loads, file.read_text().splitlines())]


def test_a_command_that_was_begun_and_has_no_result_waits_for_a_person(run: ReviewRun) -> None:
    item = run.state.items["a"]
    for who in ("Ann", "Ben"):
        run.append(who, approve(item))
    run.append("Ann", CommandStarted(id="a", digest=item.digest, command=("mail",)))

    assert OutboundCommand(run, "Ann", ["false"], lambda id: None).send_all(items_to_run(run.state, again=True)) == 0
    assert [(each.id, each.outgoing) for each in unresolved_items(run.state)] == [("a", CommandStatus.UNKNOWN)]
    with pytest.raises(EntryRefused, match="no decision changes that"):
        run.append("Ann", reject(item, "late"))
    run.append("Ann", CommandMarked(id="a", sent=False))
    with pytest.raises(RunError, match="false ended with 1"):
        OutboundCommand(run, "Ann", ["false"], lambda id: None).send_all(items_to_run(run.state))
    assert item.outgoing is CommandStatus.FAILED
