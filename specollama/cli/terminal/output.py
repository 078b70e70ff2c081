"""Displays of a reply: the answer goes to stdout, everything else to stderr."""

from __future__ import annotations

import io
import json
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Protocol

import typer
from rich.console import Console

from specollama.cli.terminal.escaping import escape_controls, escape_json
from specollama.config.private_file import Overwrite
from specollama.errors import one_line
from specollama.pairs.report import align_columns, event_object, stats_lines
from specollama.spec_decode.events import Done, Event, Text, ToolCalls
from specollama.spec_decode.types import Origin

ORIGIN_STYLES = {
    Origin.ACCEPTED: "green",
    Origin.RECOVERED: "red underline",  # not every eye tells red from green
    Origin.BONUS: "cyan",
    Origin.PLAIN: "",
}


class Display(Protocol):
    """Shows the events of a reply."""

    def __call__(self, event: Event, /) -> None: ...

    def end(self) -> None:
        """No more events will come, whether the reply was whole or broke off."""


def stdout(*, wrap: bool = False) -> Console:
    """The console of answers: no colours unless it is a terminal (and never under NO_COLOR)."""
    return Console(highlight=False, emoji=False, soft_wrap=not wrap)


def stderr(*, wrap: bool = False) -> Console:
    return Console(stderr=True, highlight=False, emoji=False, soft_wrap=not wrap)


def text_display(*, origin: bool, stats: bool, styles: Mapping[Origin, str] = ORIGIN_STYLES) -> Display:
    """Display for people: text as it arrives, coloured by `origin`, and with `stats` the counters after it."""
    return _AsText(styles if origin else {}, stats=stats)


def json_text(value: object, *, indent: int | None = None) -> str:
    """One JSON value. Control characters are JSON escapes, so that they can't steer a terminal."""
    return escape_json(json.dumps(value, ensure_ascii=False, indent=indent))


def json_display() -> Display:
    """Display for programs: one JSON object a line, in UTF-8, the last with the counters."""
    return _AsJson()


def legend() -> str:
    """Legend of the colours, as rich markup."""
    return "  ".join(f"[{style}]{origin}[/]" for origin, style in ORIGIN_STYLES.items() if style)


def count_text(number: int, noun: str) -> str:
    """`1 item`, `2 items`."""
    return f"{number} {noun}" if number == 1 else f"{number} {noun}s"


def can_ask() -> bool:
    """Whether stdin and stderr are a terminal, so that a question can be answered."""
    return all(stream is not None and stream.isatty() for stream in (sys.stdin, sys.stderr))


def ask_yes_no(question: str) -> bool:
    """Ask on stderr; whether the answer is yes. Raises typer.Abort where none comes."""
    return typer.confirm(question, err=True)


def overwriting(*, force: bool) -> Overwrite:
    """Whether to overwrite an existing file: with `force`, or if the user agrees at the terminal."""

    def may(file: Path) -> bool:
        if force or not can_ask():
            return force
        try:
            return ask_yes_no(one_line(f"{file}: exists. Write over it?"))
        except typer.Abort:
            return False

    return may


class _AsText:
    def __init__(self, styles: Mapping[Origin, str], *, stats: bool) -> None:
        self._styles, self._stats = styles, stats
        self._answer, self._aside = stdout(), stderr()
        self._open: Console | None = None  # whose last line hasn't ended
        self._later: list[str] = []  # what would break into the answer

    def __call__(self, event: Event) -> None:
        if isinstance(event, Done):
            self._finish(event)
        elif isinstance(event, Text):
            console = self._aside if event.thinking else self._answer
            style = "dim" if event.thinking else self._styles.get(event.origin, "")
            self._write(console, event.text, style)
        elif isinstance(event, ToolCalls):
            self._write(self._answer, json.dumps(list(event.calls), ensure_ascii=False), "")
        elif self._open:
            self._later.append(str(event))
        else:
            self._say(str(event))

    def end(self) -> None:
        if self._open and self._open.is_terminal:
            self._end_line()
        self._open = None
        for line in self._later:
            self._say(line)
        self._later.clear()

    def _write(self, console: Console, text: str, style: str) -> None:
        if self._open is self._aside and console is self._answer:
            self._end_line()
        console.out(escape_controls(text) if console.is_terminal else text, style=style, end="")
        self._open = None if text.endswith("\n") else console

    def _finish(self, event: Done) -> None:
        self._end_line()
        self.end()
        if self._stats:
            self._aside.out(align_columns(stats_lines(event.stats)))

    def _end_line(self) -> None:
        (self._open or self._answer).out("")
        self._open = None

    def _say(self, line: str) -> None:
        self._aside.out(line, style="dim")


class _AsJson:
    def __init__(self) -> None:
        if isinstance(sys.stdout, io.TextIOWrapper):
            sys.stdout.reconfigure(encoding="utf-8")

    def __call__(self, event: Event) -> None:
        print(json_text(event_object(event)), flush=True)

    def end(self) -> None: ...
