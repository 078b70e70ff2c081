"""`specollama batch` over the real pair: every item once, whatever ends the process."""

from __future__ import annotations

import json
import os
import random
import signal
import subprocess
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from specollama.tools.review.run_folder import open_run, verify_log
from specollama.tools.review.state import ReviewItem
from tests.support.calls import Call, command, environment, pair_flags

SURE = ["Name a colour.", "Count to five.", "Name a river in France.", "What is two plus two?"]  # no near-ties
ASKED = [*SURE, "Say hello."]


@pytest.fixture
def prompts(tmp_path: Path) -> Path:
    file = tmp_path / "prompts.jsonl"
    file.write_text("".join(json.dumps({"id": f"q{n}", "prompt": said}) + "\n" for n, said in enumerate(ASKED)))
    return file


def flags(url: str, *, temperature: float = 0, tokens: int = 6) -> list[str]:
    return [*pair_flags(url, route="plain", temperature=temperature), "--num-predict", str(tokens)]


def items(folder: Path) -> dict[str, ReviewItem]:
    with open_run(folder, "test") as run:
        return dict(run.state.items)


def answers(folder: Path) -> list[str]:
    """The ids of all replies that the log has, in its order."""
    found, faults = verify_log(folder)
    assert not faults
    return [line.entry.id for line in found.lines if line.entry.kind == "answered"]


def start(arguments: Sequence[str], **streams: Any) -> subprocess.Popen[bytes]:
    return subprocess.Popen(command(arguments), stdin=subprocess.DEVNULL, env=environment({}), **streams)


def test_each_prompt_is_answered_once_with_what_the_log_is_to_know(call: Call, pair: list[str], prompts: Path) -> None:
    with prompts.open("a") as file:
        said = [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "Say hello."}]
        line = {"messages": said, "options": {"num_predict": 3, "seed": 5}, "metadata": {"to": "ann", "none": None}}
        file.write(json.dumps(line) + "\n")
    shown = call("batch", *pair, "--num-predict", "6", str(prompts), "-o", "run")

    assert (shown.code, shown.out) == (0, "")
    assert shown.err.splitlines() == [
        *(f"{n}/6 q{n - 1}" for n in range(1, 6)),
        "6/6 6",
        "6 items in run; next: specollama review run",
    ]
    found = items(Path("run"))
    assert list(found) == ["q0", "q1", "q2", "q3", "q4", "6"]
    own, last = found["q0"].answer, found["6"].answer
    assert own
    assert last
    assert own.stats["route"] == "greedy"
    assert own.text == found["q0"].text == "".join(piece.text for piece in own.pieces)
    assert all(piece.logprob is not None and piece.logprob <= 0 for piece in own.pieces)
    assert (own.seed is not None, len(own.target_digest), len(own.prompt_digest)) == (True, 64, 64)
    assert (last.messages, last.seed, last.metadata) == (said, 5, {"to": "ann", "none": None})
    assert last.stats["eval_count"] == 3


def test_plain_replies_tell_every_token_s_probability(call: Call, embedded_url: str, prompts: Path) -> None:
    assert call("batch", *flags(embedded_url, temperature=1), str(prompts), "-o", "run").code == 0

    pieces = [piece for item in items(Path("run")).values() if item.answer for piece in item.answer.pieces]
    assert len(pieces) > 10
    assert all(piece.logprob is not None and piece.other and piece.other[0] != piece.text for piece in pieces)


def test_called_again_it_asks_nothing_again(call: Call, embedded_url: str, prompts: Path) -> None:
    arguments = ["batch", *flags(embedded_url, temperature=1), str(prompts), "-o", "run", "--concurrency", "3"]
    assert call(*arguments).code == 0
    log = Path("run/log.jsonl").read_bytes()
    shown = call(*arguments)

    assert (shown.code, shown.err) == (0, "5 items in run; next: specollama review run\n")
    assert Path("run/log.jsonl").read_bytes() == log


def test_a_run_does_not_go_on_otherwise_than_it_began(call: Call, embedded_url: str, prompts: Path) -> None:
    arguments = ["batch", *flags(embedded_url), str(prompts), "-o", "run"]
    assert call(*arguments).code == 0
    for changes, words in [
        (["--temperature", "1"], "options {'temperature': 0.0, 'num_predict': 6}, not"),
        (["--quorum", "2"], "quorum 1, not 2"),
        (["--route", "greedy"], "route plain, not greedy; give the same, or another folder"),
    ]:
        shown = call(*arguments, *changes)
        assert shown.code == 2
        assert shown.err.startswith(f"error: run: was begun with {words}")
    prompts.write_text(prompts.read_text() + '{"prompt": "One more."}\n')
    assert call(*arguments).err.startswith("error: run: was begun with other prompts (")


@pytest.mark.parametrize(
    ("line", "words"),
    [
        ("{", "line 2: not JSON"),
        ("[]", "line 2: must be an object"),
        ('{"id": "x"}', "give either prompt or messages"),
        ('{"prompt": "a", "messages": []}', "give either prompt or messages"),
        ('{"prompt": " "}', 'line 2: prompt = " ": the user says nothing in it'),
        ('{"prompt": 1}', "line 2: prompt = 1"),
        ('{"id": "", "prompt": "a"}', 'line 2: id = "": must not be empty'),
        ('{"promt": "a"}', 'line 2: promt = "a": unknown key, did you mean prompt?'),
        ('{"prompt": "a", "options": {"temprature": 1}}', "did you mean temperature?"),
        ('{"prompt": "a", "messages": [{"content": "x"}]}', "line 2: messages.0.role: missing"),
        ('{"id": "q0", "prompt": "a"}', "line 2: the id q0 is line 1's already"),
        ('{"id": "q", "prompt": "\\ud800"}', "line 2: not JSON in UTF-8: "),
    ],
)
def test_a_line_that_is_no_prompt_is_told_before_anything_is_asked(
    call: Call, tmp_path: Path, line: str, words: str
) -> None:
    file = tmp_path / "prompts.jsonl"
    file.write_text(f'{{"id": "q0", "prompt": "a"}}\n{line}\n')
    shown = call("batch", "--target", "t@127.0.0.1:9", "--route", "plain", str(file), "-o", "run")

    assert shown.code == 2
    assert words in shown.err
    assert shown.err.count("\n") == 1
    assert not Path("run").exists()


def test_without_a_server_one_line_says_so_and_the_same_command_goes_on(call: Call, prompts: Path) -> None:
    pair = ["--target", "target@127.0.0.1:9", "--route", "plain", "--lookahead", "8,4", "--stop", "a", "--stop", "b"]
    nobody = call("batch", *pair, str(prompts), "-o", "run")

    assert nobody.code == 1
    status, fault = nobody.err.splitlines()
    assert status == "0 of 5 items in run; the same command goes on from there"
    assert fault.startswith("error: ")
    assert "http://127.0.0.1:9" in fault
    assert call("batch", *pair, str(prompts), "-o", "run") == nobody, "the pair is the one with which it began"


def test_an_item_that_can_not_be_answered_does_not_stop_the_others(
    call: Call, embedded_url: str, prompts: Path
) -> None:
    long = {"id": "long", "prompt": "word " * 3000}
    prompts.write_text(json.dumps(long) + "\n" + prompts.read_text())
    shown = call("batch", *flags(embedded_url), str(prompts), "-o", "run")

    assert shown.code == 1
    assert "1 of 6 items have no reply (long: " in shown.err
    found = items(Path("run"))
    assert [id for id, item in found.items() if item.answer is None] == ["long"]
    assert found["long"].error


def test_killed_at_ten_random_moments_it_loses_and_repeats_nothing(
    embedded_url: str, prompts: Path, tmp_path: Path
) -> None:
    asked = tmp_path / "many.jsonl"
    lines = [{"id": f"{n}-{said}", "prompt": said} for n in range(6) for said in SURE]
    asked.write_text("".join(json.dumps(line) + "\n" for line in lines))
    undisturbed, killed = tmp_path / "undisturbed", tmp_path / "killed"
    arguments = ["batch", *flags(embedded_url), str(asked), "--concurrency", "2", "-o"]
    assert start([*arguments, str(undisturbed)], stderr=subprocess.DEVNULL).wait(120) == 0

    moments = random.Random(11)
    kills = 0
    while kills < 10:
        process = start([*arguments, str(killed)], stderr=subprocess.PIPE)
        assert process.stderr
        process.stderr.read(1)  # an item is done, or all were before
        time.sleep(moments.uniform(0, 0.08))
        process.kill()
        kills += process.wait() == -signal.SIGKILL
        process.stderr.close()
        assert not verify_log(killed)[1]
    assert start([*arguments, str(killed)], stderr=subprocess.DEVNULL).wait(120) == 0

    ids = [line["id"] for line in lines]
    assert sorted(answers(killed)) == sorted(answers(undisturbed)) == sorted(ids)
    texts = {id: item.text for id, item in items(undisturbed).items()}
    assert {id: item.text for id, item in items(killed).items()} == texts
    assert list(texts) == ids


def test_interrupted_it_ends_with_130_and_goes_on_where_it_was(embedded_url: str, prompts: Path) -> None:
    arguments = ["batch", *flags(embedded_url, tokens=24), str(prompts), "-o", "run"]
    process = start(arguments, stderr=subprocess.PIPE)
    assert process.stderr
    first = process.stderr.readline()
    process.send_signal(signal.SIGINT)
    said = process.communicate(timeout=60)[1].decode()

    assert (first, process.returncode) == (b"1/5 q0\n", 130)
    assert "of 5 items in run; the same command goes on from there" in said
    assert "Traceback" not in said
    assert start(arguments, stderr=subprocess.DEVNULL).wait(120) == 0
    assert answers(Path("run")) == [f"q{n}" for n in range(5)]


def test_a_second_process_on_the_same_run_is_refused_in_one_line(call: Call, embedded_url: str, prompts: Path) -> None:
    arguments = ["batch", *flags(embedded_url, tokens=24), str(prompts), "-o", "run"]
    process = start(arguments, stderr=subprocess.PIPE)
    assert process.stderr
    try:
        process.stderr.readline()
        os.kill(process.pid, signal.SIGSTOP)
        refused = "error: run: another specollama is at work on this run; wait for it, or end it\n"
        for second in (
            arguments,
            ["review", "run", "--json"],
            ["review", "verify", "run"],
            ["release", "run", "-o", "x"],
        ):
            shown = call(*second)
            assert (shown.code, shown.out, shown.err) == (2, "", refused)
    finally:
        process.kill()
        process.communicate()
    assert call(*arguments).code == 0
