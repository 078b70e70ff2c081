"""`specollama chat`: a conversation through pipes, and what it does when something goes wrong."""

from __future__ import annotations

import contextlib
import os
import re
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from queue import Empty, Queue
from typing import Any

import pytest

from specollama.server.embedded.serve import RunningServer
from tests.support.misbehaving import Busy, Manners, Misbehaving
from tests.support.scripted_ollama import SONG, Call, ScriptedOllama

Server = Callable[..., Misbehaving]
SONG_TEXT = "".join(piece.text for piece in SONG)
PATIENCE = 60  # seconds: only what never comes takes so long


@dataclass
class Chat:
    """A chat that runs; what it says on either stream can be waited for."""

    process: subprocess.Popen[str]
    out: str = ""
    aside: str = ""
    _told: Queue[tuple[str, str]] = field(default_factory=Queue)

    def __post_init__(self) -> None:
        for name, stream in (("out", self.process.stdout), ("aside", self.process.stderr)):
            threading.Thread(target=self._read, args=(name, stream), daemon=True).start()

    def _read(self, name: str, stream: Any) -> None:
        with contextlib.suppress(ValueError):  # closed at the end
            while piece := os.read(stream.fileno(), 4096):
                self._told.put((name, piece.decode()))

    def say(self, line: str) -> None:
        assert self.process.stdin
        self.process.stdin.write(line + "\n")
        self.process.stdin.flush()

    def wait(self, stream: str, pattern: str) -> None:
        """Until the stream has said it since the last wait."""
        while not re.search(pattern, getattr(self, stream)):
            name, piece = self._next(pattern)
            setattr(self, name, getattr(self, name) + piece)

    def _next(self, pattern: str) -> tuple[str, str]:
        try:
            return self._told.get(timeout=PATIENCE)
        except Empty:
            raise AssertionError(f"{pattern!r} never came: {self.out!r} {self.aside!r}") from None

    def forget(self) -> None:
        self.out = self.aside = ""

    def leave(self) -> int:
        assert self.process.stdin
        self.process.stdin.close()
        return self.process.wait(PATIENCE)


@pytest.fixture
def chat() -> Iterator[Callable[..., Chat]]:
    running: list[subprocess.Popen[str]] = []

    def start(url: str, *arguments: str) -> Chat:
        command = [sys.executable, "-m", "specollama", "chat", "--temperature", "0"]
        models = ["--target", f"target@{url}", "--draft", f"draft@{url}", "--route", "lanes"]
        process = subprocess.Popen(
            [*command, *models, *arguments],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            env={**os.environ, "PYTHONUNBUFFERED": "1", "NO_COLOR": "1"},
        )
        running.append(process)
        return Chat(process)

    yield start
    for process in running:
        process.kill()
        process.wait()
        for stream in (process.stdin, process.stdout, process.stderr):
            if stream and not stream.closed:
                with contextlib.suppress(BrokenPipeError):
                    stream.close()


def prompts(scripted: ScriptedOllama) -> list[list[dict[str, Any]]]:
    """The conversations that were rendered."""
    return [call.body["messages"] for call in scripted.calls if call.renders]


def test_the_conversation_is_kept(chat: Callable[..., Chat], scripted: ScriptedOllama, scripted_url: str) -> None:
    talk = chat(scripted_url, "--system", "Sing.")
    talk.say("One.")
    talk.wait("out", re.escape(SONG_TEXT))
    talk.say("Two.")
    talk.wait("out", f"(?s){re.escape(SONG_TEXT)}.*{re.escape(SONG_TEXT)}")
    assert talk.leave() == 0
    first, second = prompts(scripted)
    assert first == [{"role": "system", "content": "Sing."}, {"role": "user", "content": "One."}]
    assert second == [
        *first,
        {"role": "assistant", "content": SONG_TEXT},
        {"role": "user", "content": "Two."},
    ]
    rows = [str(call.body["prompt"]) for call in scripted.calls if call.is_row]
    assert any(row.startswith(rows[0].removesuffix("<|im_start|>assistant\n")) and "Two." in row for row in rows)


def test_its_commands(chat: Callable[..., Chat], scripted: ScriptedOllama, scripted_url: str) -> None:
    talk = chat(scripted_url)
    talk.say("/stats")
    talk.wait("aside", "no reply yet")
    talk.say("/help")
    talk.wait("aside", r"(?s)/help.*/stats.*/clear.*/bye.*Ctrl-C")
    talk.say("/sing now")
    talk.wait("aside", r"unknown command /sing; /help lists them")
    talk.say("")
    talk.say("One.")
    talk.wait("out", re.escape(SONG_TEXT))
    talk.forget()
    talk.say("/stats")
    talk.wait("aside", r"(?s)route +lanes.*acceptance rate +\d")
    talk.say("/clear")
    talk.wait("aside", "the conversation is forgotten")
    talk.say("Two.")
    talk.wait("out", re.escape(SONG_TEXT))
    talk.say("/bye")
    assert talk.process.wait(PATIENCE) == 0
    assert prompts(scripted) == [[{"role": "user", "content": "One."}], [{"role": "user", "content": "Two."}]]


def test_the_end_of_input_leaves(chat: Callable[..., Chat], scripted_url: str) -> None:
    assert chat(scripted_url).leave() == 0


def test_ctrl_c_ends_the_reply_only_and_keeps_what_came(chat: Callable[..., Chat], embedded: RunningServer) -> None:
    talk = chat(embedded.url, "--num-predict", "400")
    talk.say("Write a long story about a lighthouse.")
    talk.wait("out", r"\w+ \w+ \w+")
    talk.process.send_signal(signal.SIGINT)
    talk.wait("aside", r"\(stopped\)")
    talk.forget()
    talk.say("/stats")
    talk.wait("aside", "no reply yet")
    talk.say("/help")
    talk.wait("aside", "Ctrl-C")
    assert talk.leave() == 0


def test_what_came_before_ctrl_c_is_part_of_the_conversation(
    chat: Callable[..., Chat], misbehaving: Server, scripted: ScriptedOllama
) -> None:
    class Slow(Manners):
        """No row any more after some."""

        rows = 0

        def hangs(self, call: Call) -> bool:
            self.rows += call.is_row
            return call.is_row and 12 < self.rows < 40

    server = misbehaving(Slow())
    talk = chat(server.url, "--lookahead", "4")
    talk.say("One.")
    talk.wait("out", "The tide comes in")
    talk.process.send_signal(signal.SIGINT)
    talk.wait("aside", r"\(stopped\)")
    kept = talk.out.strip("\n")
    server.manners = Manners()
    talk.forget()
    talk.say("Two.")
    talk.wait("out", re.escape(SONG_TEXT))
    assert talk.leave() == 0
    assert prompts(scripted)[-1] == [
        {"role": "user", "content": "One."},
        {"role": "assistant", "content": kept},
        {"role": "user", "content": "Two."},
    ]
    assert SONG_TEXT.startswith(kept)


def test_ctrl_c_at_the_prompt_tells_how_to_leave(chat: Callable[..., Chat], scripted_url: str) -> None:
    talk = chat(scripted_url)
    talk.say("/help")
    talk.wait("aside", "keep what was written\n")
    talk.process.send_signal(signal.SIGINT)
    talk.wait("aside", "/bye or Ctrl-D leaves")
    assert talk.leave() == 0


def test_what_no_longer_fits_the_context_is_refused_with_what_to_do(
    chat: Callable[..., Chat], embedded: RunningServer
) -> None:
    talk = chat(embedded.url)
    talk.say("word " * 1100)
    talk.wait("aside", r"error: .*; /set parameter num_ctx \d+ makes it larger, /undo and /clear make room\n")
    assert not talk.out.strip()
    assert talk.leave() == 1


def test_a_server_that_fails_is_one_line_and_the_chat_goes_on(
    chat: Callable[..., Chat], misbehaving: Server, scripted: ScriptedOllama
) -> None:
    server = misbehaving()
    talk = chat(server.url)
    talk.say("One.")
    talk.wait("out", re.escape(SONG_TEXT))
    server.manners = Busy(lambda call: call.generates or call.renders)
    talk.forget()
    talk.say("Two.")
    talk.wait("aside", r"error: .*\n")
    assert re.search(r"^error: http://\S+: server busy, please try again\. .*$", talk.aside, re.MULTILINE)
    assert talk.aside.count("error:") == 1
    assert not talk.out.strip()
    server.manners = Manners()
    talk.forget()
    talk.say("Three.")
    talk.wait("out", re.escape(SONG_TEXT))
    assert talk.leave() == 1, "one of them failed"
    asked = [message["content"] for message in prompts(scripted)[-1]]
    assert asked == ["One.", SONG_TEXT, "Three."], "a question without an answer is forgotten"


def test_a_server_that_is_not_there_is_one_line_and_the_chat_goes_on(chat: Callable[..., Chat]) -> None:
    talk = chat("http://127.0.0.1:9")
    for line in ("One.", "Two."):
        talk.forget()
        talk.say(line)
        talk.wait("aside", r"error: can't reach http://127\.0\.0\.1:9.*\n")
    assert talk.leave() == 1


def test_images_go_with_the_next_message(
    chat: Callable[..., Chat], scripted: ScriptedOllama, scripted_url: str, tmp_path: Path
) -> None:
    (tmp_path / "red.png").write_bytes(b"GIF89a")
    talk = chat(scripted_url, "--image", str(tmp_path / "red.png"))
    talk.say("Which colour?")
    talk.wait("out", re.escape(SONG_TEXT))
    talk.wait("aside", r"speculation: off \(images\)")
    assert talk.leave() == 0
    (sent,) = [call for call in scripted.calls if call.generates]
    assert sent.path == "/api/chat"
    assert sent.body["messages"] == [{"role": "user", "content": "Which colour?", "images": ["R0lGODlh"]}]


def test_an_image_that_can_not_be_read_is_a_mistake(chat: Callable[..., Chat], scripted_url: str) -> None:
    talk = chat(scripted_url, "--image", "/nowhere/red.png")
    talk.wait("aside", r"error: --image /nowhere/red.png: No such file or directory\n")
    assert talk.process.wait(PATIENCE) == 2
