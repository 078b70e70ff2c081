"""A terminal with a program in it, seen as a person sees it."""

from __future__ import annotations

import os
import re
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pexpect
import pyte

PATIENCE = 60  # seconds: only what never comes takes so long
ROWS, COLUMNS = 40, 100


class Screen:
    """`text` is all that was shown, what has scrolled away included; `raw` the bytes that it was made of."""

    def __init__(
        self,
        arguments: Sequence[str],
        folder: Path,
        environ: Mapping[str, str],
        *,
        rows: int = ROWS,
        columns: int = COLUMNS,
    ) -> None:
        paths = {"PYTHONPATH": os.pathsep.join(path for path in sys.path if path)}
        unset = {"NO_COLOR", "FORCE_COLOR", "SPECOLLAMA_CONFIG", "OLLAMA_HOST", "EDITOR", "VISUAL", "COLUMNS", "LINES"}
        kept = {name: value for name, value in os.environ.items() if name not in unset}
        self.raw = b""
        self._seen = 0
        self._screen = pyte.HistoryScreen(columns, rows, history=2000)
        self._screen.write_process_input = self._answer  # where the cursor is, when a program asks
        self._stream = pyte.ByteStream(self._screen)
        self._process = pexpect.spawn(
            sys.executable,
            ["-m", "specollama", *arguments],
            dimensions=(rows, columns),
            cwd=str(folder),
            env={**kept, "TERM": "xterm-256color", **paths, **environ},
            timeout=PATIENCE,
        )

    @property
    def text(self) -> str:
        past = ["".join(row[column].data for column in range(self._screen.columns)) for row in self._screen.history.top]
        return "\n".join(line.rstrip() for line in [*past, *self._screen.display]).rstrip()

    def rows(self) -> list[list[Any]]:
        """What is on the screen, cell by cell."""
        columns = range(self._screen.columns)
        return [[self._screen.buffer[row][column] for column in columns] for row in range(self._screen.lines)]

    def colours(self, word: str) -> set[str]:
        """Those of the word's letters, where it stands on the screen last."""
        for number, line in reversed(list(enumerate(self._screen.display))):
            if (place := line.rfind(word)) >= 0:
                row = self._screen.buffer[number]
                return {row[column].fg for column in range(place, place + len(word))}
        raise AssertionError(f"{word!r} isn't on the screen:\n{self.text}")

    def type(self, keys: str) -> None:
        self._process.send(keys)

    def enter(self, line: str) -> None:
        self.type(line + "\r")

    def say(self, line: str, answer: str) -> str:
        """A line, and what is shown from it on until the pattern has come; a prompt follows it."""
        prompts = [number for number, shown in enumerate(self.text.split("\n"), 1) if shown.startswith(">>>")]
        start = prompts[-1] if prompts else 1
        self.enter(line)
        return self.wait(answer + r"(?s:.*)\n>>>", start)

    def wait(self, pattern: str, start: int = 1) -> str:
        """What is shown from a line on, once the pattern is there."""
        until = time.monotonic() + PATIENCE
        while True:
            shown = "\n".join(self.text.split("\n")[start - 1 :])
            if re.search(pattern, shown):
                return shown
            if time.monotonic() > until or not self._read():
                raise AssertionError(f"{pattern!r} never came:\n{self.text}")

    def resize(self, rows: int, columns: int) -> None:
        self._screen.resize(rows, columns)
        self._process.setwinsize(rows, columns)

    def left(self) -> int | None:
        """Its exit code, once it has ended."""
        while self._read():
            pass
        self._process.wait()
        return self._process.exitstatus

    def close(self) -> None:
        self._process.close(force=True)

    def _read(self) -> bool:
        try:
            more = self._process.read_nonblocking(65536, timeout=0.2)
        except pexpect.TIMEOUT:
            return True
        except pexpect.EOF:
            return False
        self.raw += more
        self._stream.feed(more)
        return True

    def _answer(self, data: str) -> None:
        self._process.send(data)
