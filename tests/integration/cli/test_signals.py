"""SIGTERM and a closed terminal (SIGHUP) end a command as Ctrl-C does: what was written is kept."""

from __future__ import annotations

import contextlib
import json
import os
import pty
import signal
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from specollama.pairs.history_store import ConversationStore
from tests.support.calls import command, environment
from tests.support.misbehaving import Manners, Misbehaving
from tests.support.scripted_ollama import Call, song
from tests.support.serving import serving

BEGUN = "The tide"
ENDING = [signal.SIGTERM, signal.SIGHUP]
IGNORED = signal.getsignal(signal.SIGHUP) is signal.SIG_IGN

pytestmark = pytest.mark.skipif(IGNORED, reason="started by nohup")


class StallsAfterSomeWords(Manners):
    def cut(self, call: Call, body: bytes) -> Any:
        lines = body.splitlines(keepends=True)
        return (len(b"".join(lines[:4])), "stall") if call.streams and call.generates else None


class NeverAnswers(Manners):
    def hangs(self, call: Call) -> bool:
        return call.streams and call.generates


@pytest.fixture
def stalling() -> Iterator[Callable[[Manners], str]]:
    """The URL of a server in front of a scripted model, with these manners."""
    with contextlib.ExitStack() as stack:

        def up(manners: Manners) -> str:
            return stack.enter_context(serving(Misbehaving(stack.enter_context(serving(song())), manners)))

        yield up


def started(*arguments: str, **pipes: Any) -> subprocess.Popen[bytes]:
    defaults = {"stdin": subprocess.DEVNULL, "stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
    return subprocess.Popen(command(arguments), env=environment({}), **{**defaults, **pipes})


def plain(url: str) -> list[str]:
    return ["--target", f"target@{url}", "--route", "plain", "--temperature", "0"]


def read_until(stream: Any, text: str) -> str:
    shown = ""
    while text not in shown:
        piece = os.read(stream if isinstance(stream, int) else stream.fileno(), 4096)
        assert piece, f"{text!r} never came: {shown!r}"
        shown += piece.decode()
    return shown


@pytest.mark.parametrize("how", ENDING)
def test_a_run_that_is_ended_keeps_what_was_printed_and_its_trace(
    stalling: Callable[[Manners], str], how: signal.Signals
) -> None:
    with started("run", *plain(stalling(StallsAfterSomeWords())), "--trace", "t.jsonl", "Sing.") as process:
        read_until(process.stdout, BEGUN)
        process.send_signal(how)
        assert process.stderr
        told = process.stderr.read().decode()
    assert process.returncode == 128 + how
    assert "Traceback" not in told
    lines = [json.loads(line) for line in Path("t.jsonl").read_text().splitlines()]
    assert len(lines) > 3
    assert "reason" not in lines[-1], "the trace says that the reply has no end"


@pytest.mark.parametrize("how", ENDING)
def test_a_command_that_waits_for_its_input_ends_without_a_word(how: signal.Signals) -> None:
    reading, writing = os.pipe()
    with started("run", "--target", "x", "--draft", "y", stdin=reading) as process:
        os.write(writing, b"begun")
        while not waiting_for_input(process.pid):
            assert process.poll() is None
        process.send_signal(how)
        assert process.wait(30) == 128 + how
        assert process.stderr
        assert process.stderr.read() == b""
    os.close(reading)
    os.close(writing)


def waiting_for_input(pid: int) -> bool:
    """Whether it catches SIGTERM by now, and sleeps."""
    status = Path(f"/proc/{pid}/status").read_text()
    caught = int(next(line for line in status.splitlines() if line.startswith("SigCgt")).split()[1], 16)
    return bool(caught >> (signal.SIGTERM - 1) & 1) and "State:\tS" in status


def test_a_signal_that_was_to_be_ignored_stays_ignored(stalling: Callable[[Manners], str]) -> None:
    before = signal.signal(signal.SIGHUP, signal.SIG_IGN)
    try:
        process = started("run", *plain(stalling(StallsAfterSomeWords())), "Sing.")
    finally:
        signal.signal(signal.SIGHUP, before)
    with process:
        read_until(process.stdout, BEGUN)
        process.send_signal(signal.SIGHUP)
        process.send_signal(signal.SIGTERM)
        assert process.wait(30) == 128 + signal.SIGTERM


@pytest.mark.parametrize(
    ("manners", "kept"),
    [(StallsAfterSomeWords(), ["Sing.", BEGUN]), (NeverAnswers(), ["Sing."])],
    ids=["in mid-reply", "before any word"],
)
def test_a_chat_whose_terminal_is_closed_keeps_the_question_and_what_came(
    stalling: Callable[[Manners], str],
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
    manners: Manners,
    kept: list[str],
) -> None:
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path / "data"))
    url = stalling(manners)
    pid, terminal = pty.fork()
    if pid == 0:
        arguments = command(["chat", *plain(url)])
        os.execve(arguments[0], arguments, environment({"TERM": "xterm"}))
    read_until(terminal, ">>>")
    os.write(terminal, b"Sing.\r")
    read_until(terminal, "tide" if len(kept) == 2 else "\x1b[2m...")  # "...": it is waited for
    os.close(terminal)
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 128 + signal.SIGHUP
    turns = ConversationStore(tmp_path / "data" / "specollama" / "conversations.sqlite3").load("1").history.turns
    assert [turn.role for turn in turns] == ["user", "assistant"][: len(kept)]
    assert [turn.content.startswith(said) for turn, said in zip(turns, kept, strict=True)] == [True] * len(kept)


@pytest.mark.parametrize("how", ENDING)
def test_a_server_command_leaves_signals_to_its_server(how: signal.Signals) -> None:
    """It ends by the signal itself, which service managers take for a sound end."""
    with started("embedded", "serve", "--port", "0") as process:
        read_until(process.stderr, "serving ")
        process.send_signal(how)
        assert process.wait(60) in (0, -signal.SIGTERM)
