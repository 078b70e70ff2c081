"""Where a chat's lines come from."""

from __future__ import annotations

import asyncio
import io
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from prompt_toolkit.application import create_app_session
from prompt_toolkit.input import PipeInput, create_pipe_input
from prompt_toolkit.output import DummyOutput

from specollama.cli.chat.line_reader import LineReader, TerminalReader


@pytest.fixture
def keys() -> Iterator[PipeInput]:
    """What is typed at a terminal."""
    with create_pipe_input() as pipe, create_app_session(input=pipe, output=DummyOutput()):
        yield pipe


def typed(keys: PipeInput, history: Path, line: bytes) -> str:
    with asyncio.Runner() as runner:
        reader = TerminalReader(runner, history, lambda: ((), ()), lambda: "")
        reader.set_history(True)
        keys.send_bytes(line)
        return reader.read()


def test_bytes_that_are_no_text_are_no_fault_of_the_message(keys: PipeInput, tmp_path: Path) -> None:
    text = typed(keys, tmp_path / "typed", b"caf\xe9\r")
    assert text == "caf\ufffd"


def test_where_nothing_can_be_written_a_chat_goes_on_without_what_was_typed(keys: PipeInput, tmp_path: Path) -> None:
    (tmp_path / "data").write_text("no folder")
    assert typed(keys, tmp_path / "data" / "typed", b"hello\r") == "hello"
    (tmp_path / "typed").mkdir()
    assert typed(keys, tmp_path / "typed", b"hello\r") == "hello"


def test_lines_are_kept_while_that_is_wanted_and_no_others(keys: PipeInput, tmp_path: Path) -> None:
    file = tmp_path / "data" / "typed"
    with asyncio.Runner() as runner:
        reader = TerminalReader(runner, file, lambda: ((), ()), lambda: "")
        for wanted, line in ((None, b"one\r"), (True, b"two\r"), (False, b"three\r"), (True, b"four\r")):
            if wanted is not None:
                reader.set_history(wanted)
            keys.send_bytes(line)
            reader.read()
    assert [line for line in file.read_text().splitlines() if line.startswith("+")] == ["+two", "+four"]
    assert file.stat().st_mode & 0o077 == 0


def test_the_end_of_input_ends_several_lines_that_were_begun(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "stdin", io.StringIO('"""one\ntwo'))
    assert LineReader().read() == '"""one\ntwo'
    for nothing_more in (sys.stdin, None):
        monkeypatch.setattr(sys, "stdin", nothing_more)
        with pytest.raises(EOFError):
            LineReader().read()
