"""`specollama release`: files and commands, each item once."""

from __future__ import annotations

import json
import os
import shlex
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from specollama.tools.review.decisions import approve, edit, reject
from specollama.tools.review.hash_chain import hash_of
from specollama.tools.review.log_entries import ItemSent, ReleaseAnnounced
from specollama.tools.review.run_folder import open_run
from tests.support.calls import Call, command, environment
from tests.support.review_runs import run_of

OUT = Path("approved.jsonl")


@pytest.fixture(autouse=True)
def decided() -> None:
    """A run of three items: two approved, one of them edited before, and one rejected."""
    with run_of(Path("run"), a="Blue.", b="Green.", c="Red.") as run:
        run.append("Ann", edit(run.state.items["a"], "Bleu ciel."))
        for id in "ab":
            run.append("Ann", approve(run.state.items[id]))
        run.append("Ann", reject(run.state.items["c"], "wrong"))


def lines(file: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in file.read_text().splitlines()]


def entries() -> list[dict[str, Any]]:
    return [line["entry"] for line in lines(Path("run/log.jsonl"))]


def sender(code: str) -> str:
    return shlex.join([sys.executable, "-c", code])


KEEP = "import sys; open('sent', 'a').write(sys.stdin.read())"


def test_the_approved_texts_are_written_as_they_were_approved(call: Call) -> None:
    shown = call("release", "run", "-o", str(OUT))

    assert (shown.code, shown.err) == (0, "2 items written to approved.jsonl\n")
    first, second = lines(OUT)
    assert (first["id"], first["text"], first["edited"], first["approved_by"]) == ("a", "Bleu ciel.", True, ["Ann"])
    assert (second["id"], second["text"], second["metadata"]) == ("b", "Green.", {"to": "b@example.org"})
    assert [entry["kind"] for entry in entries()[-2:]] == ["releasing", "released"]
    assert sorted(path.name for path in Path().iterdir()) == ["approved.jsonl", "run"]


def test_what_was_released_is_not_released_again(call: Call) -> None:
    assert call("release", "run", "-o", str(OUT)).code == 0
    again = call("release", "run", "-o", "again.jsonl")

    assert again.code == 2
    assert again.err.startswith("error: run: all that is approved was released before, to /")
    assert not Path("again.jsonl").exists()


def test_a_file_that_is_there_is_left_alone(call: Call) -> None:
    OUT.write_text("mine")
    shown = call("release", "run", "-o", str(OUT))

    assert (shown.code, shown.err) == (2, f"error: {OUT}: exists; name a new file\n")
    assert OUT.read_text() == "mine"
    assert entries()[-1]["kind"] == "rejected"


def test_while_something_is_undecided_it_refuses_unless_it_is_to_be_partial(call: Call, tmp_path: Path) -> None:
    with run_of(tmp_path / "open", a="Blue.", b="Green.") as run:
        run.append("Ann", approve(run.state.items["a"]))
    refused = call("release", "open", "-o", str(OUT))
    assert (refused.code, OUT.exists()) == (2, False)
    assert refused.err == "error: open: 1 not decided; decide them, or release what is approved with --partial\n"
    assert call("release", "open", "-o", str(OUT), "--partial").code == 0
    assert [line["id"] for line in lines(OUT)] == ["a"]

    with open_run(Path("open"), "Ann") as run:
        run.append("Ann", approve(run.state.items["b"]))
    assert call("release", "open", "-o", "rest.jsonl").code == 0
    assert [line["id"] for line in lines(Path("rest.jsonl"))] == ["b"]


@pytest.mark.parametrize("renamed", [False, True])
def test_a_release_that_was_broken_off_is_completed_once(call: Call, renamed: bool) -> None:
    """Killed after the intent was written: before, or after the file got its name."""
    content, draft = b'{"id": "a"}\n', Path(".draft").absolute()
    (OUT if renamed else draft).write_bytes(content)
    where = {"file": str(OUT.absolute()), "draft": str(draft), "sha256": hash_of(content)}
    with open_run(Path("run"), "Ann") as run:
        run.append("Ann", ReleaseAnnounced(**where, items=(ItemSent(id="a", digest=run.state.items["a"].digest),)))
    shown = call("release", "run", "-o", "more.jsonl")

    assert shown.code == 0
    assert shown.err.startswith("a release that was broken off is complete: ")
    assert OUT.read_bytes() == content
    assert [line["id"] for line in lines(Path("more.jsonl"))] == ["b"]
    assert not draft.exists()


def test_a_file_that_comes_in_between_is_left_alone(call: Call, monkeypatch: pytest.MonkeyPatch) -> None:
    """Between the look and the writing somebody else's file appears: it stays, and what was to go out is kept."""
    real = os.link

    def late(source: Path, target: Path) -> None:
        OUT.write_text("mine")
        real(source, target)

    monkeypatch.setattr(os, "link", late)
    shown = call("release", "run", "-o", str(OUT))
    assert (shown.code, OUT.read_text()) == (1, "mine")
    assert shown.err.startswith(f"error: {OUT.absolute()}: exists; move it away, and what was to be released there (")
    assert entries()[-1]["kind"] == "releasing"

    monkeypatch.setattr(os, "link", real)
    OUT.rename("theirs.jsonl")
    assert call("release", "run", "--exec", "true").code == 0
    assert [line["id"] for line in lines(OUT)] == ["a", "b"]
    assert {path.name for path in Path().iterdir()} >= {"approved.jsonl", "theirs.jsonl", "run"}
    assert not list(Path().glob(".approved*")), "no draft is left"


def test_a_release_that_may_have_been_taken_away_is_not_repeated(call: Call) -> None:
    """Killed as the file appeared, which somebody then took away: only a person can say that."""
    broken_off(hash_of(b"what was approved"))
    Path(".draft.leaving").write_bytes(b"what was approved")
    shown = call("release", "run", "-o", "more.jsonl")
    assert (shown.code, OUT.exists()) == (1, False)
    assert "isn't there, and neither is its draft" in shown.err
    assert call("release", "run", "--mark", f"{OUT}=sent").code == 0
    assert not Path(".draft.leaving").exists()


def test_a_release_that_was_killed_as_its_file_appeared_is_complete(call: Call) -> None:
    broken_off(hash_of(b"what was approved"))
    Path(".draft.leaving").write_bytes(b"what was approved")
    os.link(".draft.leaving", OUT)
    assert call("release", "run", "--exec", "true").code == 0
    assert (OUT.read_bytes(), Path(".draft.leaving").exists()) == (b"what was approved", False)


def broken_off(sha256: str) -> None:
    """What a killed release leaves, but for its files: `a` was to go to OUT."""
    where = {"file": str(OUT.absolute()), "draft": str(Path(".draft").absolute()), "sha256": sha256}
    with open_run(Path("run"), "Ann") as run:
        run.append("Ann", ReleaseAnnounced(**where, items=(ItemSent(id="a", digest=run.state.items["a"].digest),)))


@pytest.mark.parametrize("other", [False, True])
@pytest.mark.parametrize("sent", [False, True])
def test_a_release_of_which_nothing_is_left_waits_for_a_person(call: Call, sent: bool, other: bool) -> None:
    broken_off(hash_of(b"what was approved"))
    if other:
        OUT.write_text("something else")
    shown = call("release", "run", "-o", "more.jsonl")
    assert (shown.code, shown.err.count("\n"), Path("more.jsonl").exists()) == (1, 1, False)
    assert shown.err.startswith(f"error: {OUT.absolute()}: what was to be released there isn't there")
    assert f"--mark {OUT.absolute()}=not-sent" in shown.err
    assert entries()[-1]["kind"] == "releasing"

    assert call("release", "run", "--mark", f"{OUT}={'sent' if sent else 'not-sent'}", "-o", "more.jsonl").code == 0
    assert [line["id"] for line in lines(Path("more.jsonl"))] == (["b"] if sent else ["a", "b"])
    assert [entry["kind"] for entry in entries()[-3:-1]] == ["released" if sent else "withdrawn", "releasing"]
    assert call("review", "verify", "run").code == 0
    assert call("release", "run", "--mark", f"{OUT}=sent").err == f"error: there is no item {OUT}\n"


def test_a_release_that_can_be_completed_is_not_decided_by_hand(call: Call) -> None:
    Path(".draft").write_bytes(b"what was approved")
    broken_off(hash_of(b"what was approved"))
    shown = call("release", "run", "--mark", f"{OUT}=sent")

    assert (shown.code, shown.err) == (2, "error: run: there is no release to decide by hand\n")
    assert entries()[-1]["kind"] == "releasing"


def test_a_draft_that_was_changed_is_not_released(call: Call) -> None:
    Path(".draft").write_text("something else")
    broken_off(hash_of(b"what was approved"))
    shown = call("release", "run", "-o", "more.jsonl")

    assert (shown.code, "isn't what was to be released" in shown.err) == (1, True)
    assert not OUT.exists()
    assert call("release", "run", "--mark", f"{OUT}=not-sent", "-o", str(OUT)).code == 0
    assert [line["id"] for line in lines(OUT)] == ["a", "b"]


def test_a_command_is_only_told_unless_it_is_to_go(call: Call) -> None:
    log = Path("run/log.jsonl").read_bytes()
    shown = call("release", "run", "--exec", "touch 'a b'; $HOME")

    assert shown.code == 0
    assert shown.out == "".join(f"would run for {id}: touch 'a b;' '$HOME'\n" for id in "ab")
    assert shown.err == "a dry run: nothing was run; --go runs it for 2 items\n"
    assert not Path("a b").exists()
    assert Path("run/log.jsonl").read_bytes() == log


def test_a_command_gets_each_approved_item_once_as_json(call: Call) -> None:
    shown = call("release", "run", "--exec", sender(KEEP), "--go")
    assert (shown.code, shown.err) == (0, "sent: a\nsent: b\n2 items sent\n")
    again = call("release", "run", "--exec", sender(KEEP), "--go")
    assert (again.code, again.err) == (0, "0 items sent\n")

    assert [(line["id"], line["text"]) for line in lines(Path("sent"))] == [("a", "Bleu ciel."), ("b", "Green.")]
    begun, ended = entries()[-4:-2]
    assert (begun["kind"], begun["command"]) == ("running", shlex.split(sender(KEEP)))
    assert (ended["kind"], ended["code"]) == ("ran", 0)


def test_what_went_out_in_a_file_is_sent_by_a_command_only_where_that_is_asked_for(call: Call) -> None:
    assert call("release", "run", "-o", str(OUT)).code == 0
    told = "2 items went out in a file before: not sent again (--again sends what did)\n"
    assert call("release", "run", "--exec", "true").err.startswith(told)
    shown = call("release", "run", "--exec", sender(KEEP), "--go")
    assert (shown.code, shown.err) == (0, told + "0 items sent\n")
    assert not Path("sent").exists()
    assert call("release", "run", "--exec", sender(KEEP), "--go", "--again").err == "sent: a\nsent: b\n2 items sent\n"
    assert call("release", "run", "--exec", sender(KEEP), "--go", "--again").err == "0 items sent\n"


def test_what_a_command_sent_goes_into_a_file_only_where_that_is_asked_for(call: Call) -> None:
    assert call("release", "run", "--exec", sender(KEEP), "--go").code == 0
    shown = call("release", "run", "-o", str(OUT))
    assert (shown.code, OUT.exists()) == (2, False)
    assert shown.err.startswith("2 items went out by a command before: not sent again (--again sends what did)\n")
    assert "error: run: all that is approved may have gone out by a command before; --again releases it" in shown.err
    assert call("release", "run", "-o", str(OUT), "--again").code == 0
    assert [line["id"] for line in lines(OUT)] == ["a", "b"]


def test_a_file_and_a_command_of_one_call_both_get_each_item(call: Call) -> None:
    shown = call("release", "run", "-o", str(OUT), "--exec", sender(KEEP), "--go")
    assert (shown.code, shown.err) == (0, f"2 items written to {OUT}\nsent: a\nsent: b\n2 items sent\n")


def test_no_shell_reads_the_command(call: Call) -> None:
    shown = call("release", "run", "--exec", sender("import sys; print(sys.argv[1:])") + " '$HOME' `id` *", "--go")

    assert shown.code == 0
    assert entries()[-1]["stdout"] == "['$HOME', '`id`', '*']\n"


def test_at_a_failure_it_stops_and_asks_for_a_decision(call: Call) -> None:
    failing = sender("import sys; open('sent', 'a').write('x'); sys.exit('no such mailbox')")
    shown = call("release", "run", "--exec", failing, "--go")

    assert shown.code == 1
    assert shown.err.startswith(f"error: a: {sys.executable} ended with 1: no such mailbox; the items after it weren't")
    assert Path("sent").read_text() == "x"
    later = call("release", "run", "--exec", sender(KEEP), "--go")
    assert later.code == 1
    assert later.err.startswith("sent: b\n1 item sent\nerror: a (failed): not run again. Look whether it went out")
    assert call("release", "run", "--mark", "a=not-sent", "--exec", sender(KEEP), "--go").code == 0
    assert Path("sent").read_text().count('"id": "a"') == 1
    assert call("release", "run", "--mark", "a=sent").err == "error: a: sent; there is nothing to decide by hand\n"


def test_a_command_whose_result_is_not_known_is_not_run_again(call: Call) -> None:
    killer = sender("import os, signal; os.kill(os.getppid(), signal.SIGKILL)")
    arguments = command(["release", "run", "--exec", killer, "--go"])
    assert subprocess.run(arguments, env=environment({}), check=False, capture_output=True).returncode == -9

    shown = call("release", "run", "--exec", sender(KEEP), "--go")
    assert (shown.code, [line["id"] for line in lines(Path("sent"))]) == (1, ["b"])
    assert "error: a (unknown): not run again." in shown.err
    assert call("release", "run", "--mark", "a=sent").code == 0
    assert call("release", "run", "--exec", sender(KEEP), "--go").err == "0 items sent\n"


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ([], "nothing to do: give -o FILE, --exec CMD, or both"),
        (["--go"], "nothing to do"),
        (["-o", "x", "--go"], "--go: goes with --exec CMD"),
        (["--exec", "no-such-program-here"], "there is no program no-such-program-here"),
        (["--exec", "echo 'open"], "--exec echo 'open: No closing quotation"),
        (["--exec", " "], "--exec: names no command"),
        (["--mark", "a"], "--mark a: write ID=sent or ID=not-sent"),
        (["--mark", "z=sent"], "there is no item z"),
        (["--mark", "a=sent"], "a: not run; there is nothing to decide by hand"),
        (["-o", "no/such/folder/x"], "no/such/folder/x: there is no folder no/such/folder"),
    ],
)
def test_mistakes_are_told_in_one_line_and_nothing_goes_out(call: Call, arguments: list[str], words: str) -> None:
    log = Path("run/log.jsonl").read_bytes()
    shown = call("release", "run", *arguments)

    assert (shown.code in (1, 2), shown.out) == (True, "")
    assert words in shown.err
    assert shown.err.count("\n") == 1
    assert Path("run/log.jsonl").read_bytes() == log
