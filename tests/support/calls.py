"""Calls of the command line: in this process where that shows enough, else as a process of its own."""

from __future__ import annotations

import io
import os
import pty
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from specollama.cli import main
from specollama.config import trust


@dataclass(frozen=True, slots=True)
class Outcome:
    code: int
    out: str
    err: str


Call = Callable[..., Outcome]


def caller(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Call:
    """Calls `specollama` in this process. `piped`: what comes on stdin; None: stdin is closed."""

    def call(*arguments: str, piped: str | None = "") -> Outcome:
        monkeypatch.setattr(sys, "argv", ["specollama", *arguments])
        monkeypatch.setattr(sys, "stdin", None if piped is None else io.StringIO(piped))
        capsys.readouterr()
        with pytest.raises(SystemExit) as end:
            main()
        shown = capsys.readouterr()
        return Outcome(int(end.value.code or 0), shown.out, shown.err)

    return call


def own_config(text: str) -> Path:
    """A configuration of the working directory that the user trusts."""
    file = Path("specollama.toml")
    file.write_text(text)
    trust.trust(file)
    return file


def pair_flags(url: str, *, route: str = "greedy", temperature: float = 0) -> list[str]:
    return [
        *("--target", f"target@{url}", "--draft", f"draft@{url}"),
        *("--route", route, "--temperature", str(temperature)),
    ]


@dataclass(slots=True)
class Terminal:
    """A terminal, 80 columns wide, and a process whose output goes to it."""

    process: subprocess.Popen[bytes]
    reading: int
    shown: str = field(default="")

    def until(self, text: str) -> str:
        """Reads until the text is shown, or the process has gone; what is shown so far."""
        while text not in self.shown and self._read():
            pass
        return self.shown

    def rest(self) -> str:
        while self._read():
            pass
        self.process.wait(timeout=60)
        return self.shown

    def interrupt(self) -> None:
        self.process.send_signal(signal.SIGINT)

    def _read(self) -> bool:
        with suppress(OSError):  # as a terminal says that nobody writes to it any more
            if more := os.read(self.reading, 4096):
                self.shown += more.decode().replace("\r\n", "\n")
                return True
        return False


@contextmanager
def terminal(arguments: Sequence[str], **environ: str) -> Iterator[Terminal]:
    reading, writing = pty.openpty()
    process = subprocess.Popen(
        command(arguments),
        stdin=subprocess.DEVNULL,
        stdout=writing,
        stderr=writing,
        env=environment({"TERM": "xterm-256color", "COLUMNS": "80", **environ}),
    )
    os.close(writing)
    try:
        yield Terminal(process, reading)
    finally:
        process.kill()
        process.wait()
        os.close(reading)


def command(arguments: Sequence[str]) -> list[str]:
    return [sys.executable, "-m", "specollama", *arguments]


def environment(changes: Mapping[str, str]) -> dict[str, str]:
    """This process's, in which its own modules are found from any directory."""
    return {**os.environ, "PYTHONPATH": os.pathsep.join(path for path in sys.path if path), **changes}


SETTING_VARIABLES = (
    *("OLLAMA_HOST", "SPECOLLAMA_CONFIG", "SPECOLLAMA_LOG"),
    *("NO_COLOR", "FORCE_COLOR", "COLUMNS", "PYTHONIOENCODING"),
)


@pytest.fixture(autouse=True)
def nothing_set(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """An empty working directory, and no settings of the user's."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "no-settings"))
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    for variable in SETTING_VARIABLES:
        monkeypatch.delenv(variable, raising=False)


@pytest.fixture
def call(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Call:
    return caller(monkeypatch, capsys)
