"""`specollama review` at a terminal, by scripts, and its check of the log."""

from __future__ import annotations

import json
import os
import re
import shlex
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pexpect
import pytest

from specollama.tools.review.decisions import approve
from specollama.tools.review.hash_chain import ChainHead, encoded, hash_of
from specollama.tools.review.log_entries import Piece, text_digest
from specollama.tools.review.run_folder import open_run
from specollama.tools.review.state import ReviewItem
from tests.support.calls import Call, command, environment, pair_flags
from tests.support.review_runs import answered, run_of

Spawn = Callable[..., "pexpect.spawn[str]"]
KEYS = " quit\r\n"  # the end of the line of keys


@pytest.fixture
def spawn(tmp_path: Path) -> Iterator[Spawn]:
    """Starts `specollama` at a terminal."""
    running: list[pexpect.spawn[str]] = []

    def start(*arguments: str, **environ: str) -> pexpect.spawn[str]:
        program, *rest = command(arguments)
        env = environment({"TERM": "xterm-256color", **environ})
        running.append(pexpect.spawn(program, rest, env=env, encoding="utf-8", timeout=60, dimensions=(40, 100)))
        return running[-1]

    yield start
    for process in running:
        process.close(force=True)


def items(folder: Path = Path("run")) -> dict[str, ReviewItem]:
    with open_run(folder, "test") as run:
        return dict(run.state.items)


def kinds(folder: Path = Path("run")) -> list[str]:
    return [json.loads(line)["entry"]["kind"] for line in (folder / "log.jsonl").read_text().splitlines()]


def unstyled(shown: str) -> str:
    return re.sub(r"\x1b\[[0-9;]*m", "", shown)


def press(process: pexpect.spawn[str], key: str) -> str:
    """Waits for the keys to be shown, then presses one; what was shown before."""
    process.expect_exact(KEYS)
    process.send(key)
    return str(process.before)


def test_a_reviewer_goes_through_a_run(call: Call, spawn: Spawn, embedded_url: str, tmp_path: Path) -> None:
    """Approve, reject, edit, regenerate, skip and quit; later the rest, until all is decided."""
    prompts = tmp_path / "p.jsonl"
    said = [{"id": id, "prompt": "Name a colour.", "metadata": {"to": f"{id}@example.org"}} for id in "abcd"]
    prompts.write_text("".join(json.dumps(line) + "\n" for line in said))
    flags = [*pair_flags(embedded_url, route="plain", temperature=1), "--seed", "3", "--num-predict", "8"]
    assert call("batch", *flags, str(prompts), "-o", "run").code == 0
    before = {id: item.text for id, item in items().items()}
    editor = tmp_path / "editor.py"
    editor.write_text("import sys, pathlib\npathlib.Path(sys.argv[1]).write_text('Blue, and nothing else.\\n')\n")

    first = spawn("review", "run", "--reviewer", "Ann", EDITOR=shlex.join([sys.executable, str(editor)]))
    shown = press(first, "x")  # no key of ours
    assert "a · 1 of 4" in unstyled(shown)
    assert "to: a@example.org" in shown
    assert "places below 50%" in shown
    press(first, "a")
    press(first, "r")
    first.expect_exact("why?")
    first.sendline("too vague")
    press(first, "e")
    assert "+Blue, and nothing else." in press(first, "a")
    press(first, "g")
    first.expect_exact("another reply")
    press(first, "s")
    first.expect(pexpect.EOF)
    assert "4 items: 1 open, 2 approved, 1 rejected" in str(first.before)

    found = items()
    assert (found["a"].text, found["a"].approvals) == (before["a"], {"ann": "Ann"})
    assert found["b"].rejections == {"ann": ("Ann", "too vague")}
    assert found["c"].text == "Blue, and nothing else."
    assert (found["d"].attempts, found["d"].text != before["d"]) == (2, True)
    assert found["d"].answer
    assert found["d"].answer.seed != 3

    second = spawn("review", "run", "--reviewer", "Ann")
    assert "1 of 1" in press(second, "p")
    press(second, "q")
    second.expect(pexpect.EOF)
    third = spawn("review", "run", "--reviewer", "Ann")
    press(third, "a")
    third.expect_exact("next: specollama release run -o approved.jsonl")
    third.expect(pexpect.EOF)  # until then it has the run
    assert items()["d"].attempts == 3
    assert kinds() == [
        *("opened", *["answered"] * 4, "approved", "rejected", "edited", "approved", "answered"),
        *("answered", "approved"),
    ]


def test_two_reviewers_see_each_others_decisions(spawn: Spawn) -> None:
    with run_of(Path("run"), quorum=2, a="Blue."):
        pass
    ann = spawn("review", "run", "--reviewer", "Ann")
    press(ann, "a")
    ann.expect(pexpect.EOF)
    again = spawn("review", "run", "--reviewer", "ANN")
    again.expect(pexpect.EOF)
    assert KEYS not in str(again.before)  # she has decided
    named = spawn("review", "run", "--reviewer", "Ann", "--item", "a")
    assert "a · 1 of 1" in unstyled(press(named, "r"))  # and may think better of it
    named.expect_exact("why?")
    named.sendline("on second thoughts, no")
    named.expect_exact("1 item: 1 rejected")
    named.expect(pexpect.EOF)
    back = spawn("review", "run", "--reviewer", "Ann", "--item", "a")
    assert "rejected by Ann: on second thoughts, no" in press(back, "a")
    back.expect(pexpect.EOF)
    ben = spawn("review", "run", "--reviewer", "Ben")
    assert "approved by Ann (1 of 2)" in press(ben, "a")
    ben.expect_exact("1 item: 1 approved")


@pytest.mark.parametrize("way", ["\x03", "\x04", "q"])
def test_whoever_leaves_loses_nothing(spawn: Spawn, way: str) -> None:
    with run_of(Path("run"), a="Blue.", b="Green."):
        pass
    process = spawn("review", "run", "--reviewer", "Ann")
    press(process, "a")
    press(process, way)
    process.expect(pexpect.EOF)

    assert "Traceback" not in str(process.before)
    assert [item.approvals for item in items().values()] == [{"ann": "Ann"}, {}]


def test_faults_of_an_editor_and_of_a_server_leave_the_item_as_it_is(spawn: Spawn) -> None:
    with run_of(Path("run"), a="Blue."):
        pass
    process = spawn("review", "run", EDITOR="false")
    press(process, "e")
    process.expect_exact("false ended with 1; nothing was changed")
    press(process, "g")
    process.expect("no pair is given")
    press(process, "r")
    process.expect_exact("why?")
    process.sendline("")
    process.expect_exact("not rejected")
    press(process, "q")
    process.expect(pexpect.EOF)

    assert kinds() == ["opened", "answered"]


def test_what_a_reply_does_to_terminals_is_shown_and_not_done(spawn: Spawn) -> None:
    """A reply could hide a part of itself from the reviewer."""
    with run_of(Path("run"), a="Pay 5.\x1b[2K\rPay\u202e 9\u200b."):
        pass
    process = spawn("review", "run")
    shown = press(process, "q")

    assert "Pay 5.\\x1b[2K\\rPay\\u202e 9\\u200b." in shown
    assert "\x1b[2K" not in shown


def test_the_state_as_json_steers_no_terminal(call: Call) -> None:
    with run_of(Path("run"), a="Blue.\x9b2J"):
        pass
    shown = call("review", "run", "--json").out

    assert "\x9b" not in shown
    assert json.loads(shown)["items"][0]["text"] == "Blue.\x9b2J"


def test_places_of_which_nothing_is_known_are_told(spawn: Spawn) -> None:
    with run_of(Path("run"), a="Blue.", b="Green.") as run:
        unknown = answered("a", "Blue.", 2).model_copy(update={"pieces": (Piece(text="Blue.", origin="plain"),)})
        some = (Piece(text="Gre", origin="plain", logprob=-3.0, other=("Bl", -0.2)), Piece(text="en.", origin="plain"))
        run.append("machine", unknown)
        run.append("machine", answered("b", "Green.", 2).model_copy(update={"pieces": some}))
    process = spawn("review", "run", NO_COLOR="1")
    assert "low-confidence places: not known (the route lanes told no probabilities here)" in press(process, "s")
    shown = press(process, "q")
    assert "1 place below 50%: 'Gre' 5% (or 'Bl' 82%); not known for 1 of 2 (route lanes)" in shown
    assert "\x1b[1;4mGre\x1b[0men." in shown  # marked without a colour, too


def test_scripts_read_the_state_and_decide(call: Call) -> None:
    with run_of(Path("run"), a="Blue.", b="Green."):
        pass
    state = json.loads(call("review", "run", "--json").out)
    assert [(item["id"], item["status"], item["text"]) for item in state["items"]] == [
        *(("a", "open", "Blue."), ("b", "open", "Green.")),
    ]
    given = [
        {"id": "a", "decision": "approve", "digest": state["items"][0]["digest"]},
        {"id": "b", "decision": "reject", "digest": state["items"][1]["digest"], "reason": "not blue"},
    ]
    piped = "".join(json.dumps(line) + "\n" for line in given)
    shown = call("review", "run", "--decisions", "-", "--json", "--reviewer", "bot", piped=piped)

    assert (shown.code, shown.err) == (0, "2 decisions of bot written\n")
    after = json.loads(shown.out)["items"]
    assert (after[0]["status"], after[0]["approved_by"]) == ("approved", ["bot"])
    assert after[1]["rejected_by"] == [{"reviewer": "bot", "reason": "not blue"}]
    Path("again.jsonl").write_bytes(b"\xef\xbb\xbf" + json.dumps(given[0]).encode())  # as Windows writes UTF-8
    assert call("review", "run", "--decisions", "again.jsonl").code == 0
    again = call("review", "run", "--decisions", "-", piped='{"id": "a", "decision": "approve", "digest": "0"}')
    assert again.code == 2
    assert again.err.startswith("error: stdin, line 1: a: the decision is about another text")


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (
            ["review", "nowhere"],
            "error: nowhere: there is no run; `specollama batch PAIR PROMPTS.jsonl -o nowhere`",
        ),
        (["review", "verify", "nowhere"], "error: nowhere: there is no run"),
        (["release", "nowhere", "-o", "x"], "error: nowhere: there is no run"),
        (["review", "run"], "error: review needs a terminal; in scripts use --json, and --decisions FILE"),
        (["review", "run", "more", "words"], "error: too many arguments: more words"),
        (["review", "run", "--item", "z"], "error: --item z: there is no such item"),
        (["review", "run", "--reviewer", " "], "error: --reviewer NAME: give a name"),
        (["review", "run", "--decisions", "none"], "error: --decisions none: No such file"),
        (["review", "run", "--expect", "0" * 64], "error: --expect: goes with `review verify RUN`"),
        (["review", "verify", "run", "--decisions", "d"], "error: --decisions: goes without `verify`"),
        (["review", "verify", "run", "--item", "a"], "error: --item: goes without `verify`"),
        (["review", "run", "--item", "a", "--json"], "error: --item: goes without --json and --decisions"),
        (["review", "run", "--item", "a", "--decisions", "-"], "error: --item: goes without --json and --decisions"),
    ],
)
def test_mistakes_are_told_in_one_line(call: Call, arguments: list[str], words: str) -> None:
    with run_of(Path("run"), a="Blue."):
        pass
    shown = call(*arguments)

    assert (shown.code, shown.out) == (2, "")
    assert shown.err.startswith(words)
    assert shown.err.count("\n") == 1
    assert not Path("nowhere").exists()


def test_the_log_is_checked_and_nothing_is_changed(call: Call) -> None:
    with run_of(Path("run"), a="Blue.") as run:
        noted = json.loads(Path("run/head.json").read_text())["hash"]
        run.append("Ann", approve(run.state.items["a"]))
    last = json.loads(Path("run/head.json").read_text())["hash"]
    shown = call("review", "verify", "run", "--expect", noted[:16])
    assert (shown.code, shown.out) == (0, f"whole: 3 lines, the last has the hash {last}\n")
    found: dict[str, Any] = json.loads(call("review", "verify", "run", "--json").out)
    assert found == {"whole": True, "unfinished": False, "faults": [], "lines": 3, "hash": last}
    other = call("review", "verify", "run", "--expect", "0" * 64)
    assert (other.code, "no line has the hash 0000" in other.out) == (1, True)


@pytest.mark.parametrize(
    ("tamper", "words"),
    [
        (lambda lines: [lines[0], lines[1].replace(b"Blue", b"Gold"), lines[2]], "lines 2 and 3 don't belong together"),
        (lambda lines: [lines[0], lines[2]], "lines 1 and 2 don't belong together"),
        (lambda lines: [lines[0], lines[2], lines[1]], "lines 1 and 2 don't belong together"),
        (lambda lines: [*lines, lines[2]], "4 lines are there, and only 3 of them were written"),
        (lambda lines: lines[:2], "the end is cut off: 3 lines were written, 2 are there"),
        (lambda lines: [*lines[:2], lines[2][:9]], "line 3 is cut off in its middle"),
    ],
    ids=["changed byte", "removed line", "reordered lines", "appended line", "cut end", "cut line"],
)
def test_what_was_done_to_the_log_is_told(call: Call, tamper: Callable[[list[bytes]], list[bytes]], words: str) -> None:
    with run_of(Path("run"), a="Blue.") as run:
        run.append("Ann", approve(run.state.items["a"]))
    log = Path("run/log.jsonl")
    log.write_bytes(b"".join(tamper(log.read_bytes().splitlines(keepends=True))))
    tampered = log.read_bytes()
    shown = call("review", "verify", "run")

    assert shown.code == 1
    assert words in shown.out
    assert shown.err.startswith("error: run/log.jsonl: isn't the log that was written (")
    for refused in (["review", "run", "--json"], ["release", "run", "-o", "out"]):
        assert call(*refused).err.startswith("error: run/log.jsonl: ")
    assert log.read_bytes() == tampered
    assert not Path("out").exists()


def test_what_was_put_into_the_log_steers_no_terminal(call: Call) -> None:
    with run_of(Path("run"), a="Blue."):
        pass
    head = ChainHead.model_validate_json(Path("run/head.json").read_text())
    forged = encoded(head, "2026-01-01T00:00:00Z", "Eve", answered("\x1b[1A\x1b[2K", "Gold."))
    with Path("run/log.jsonl").open("ab") as log:
        log.write(forged + b"\n")
    Path("run/head.json").write_text(ChainHead(count=3, hash=hash_of(forged)).model_dump_json())
    says = "line 3: there is no item \\x1b[1A\\x1b[2K"

    assert call("review", "verify", "run").out == f"{says}\n"
    assert call("review", "run").err.startswith(f"error: run/log.jsonl: {says}; ")


def test_a_line_that_a_killed_process_left_is_told_and_settled_by_the_next(call: Call) -> None:
    with run_of(Path("run"), a="Blue."):
        pass
    head = json.loads(Path("run/head.json").read_text())
    Path("run/head.json").write_text(json.dumps({**head, "next": text_digest("something")}))
    with Path("run/log.jsonl").open("ab") as log:
        log.write(b'{"n":3,')
    shown = call("review", "verify", "run")

    assert (shown.code, shown.out) == (1, "")
    assert shown.err == (
        "error: run/log.jsonl: a process was killed at line 3, 7 bytes of it are there; "
        "the next batch, review or release settles it\n"
    )
    assert call("review", "run", "--json").code == 0
    assert kinds() == ["opened", "answered", "recovered"]
    assert call("review", "verify", "run").code == 0
    assert os.listdir("run").count("head.json.new") == 0
