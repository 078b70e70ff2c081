"""Holds a chat with the embedded pair on a terminal that nobody sees, and draws what it shows: for scripts/pictures."""

from __future__ import annotations

import io
import tempfile
from pathlib import Path

from rich.console import Console
from rich.style import Style
from rich.text import Text

from tests.support.screen import Screen

DOCS = Path(__file__).parent.parent / "docs"
QUESTION = "Write a python function that adds two numbers, and name two ways to use it."


def coloured(name: str) -> str | None:
    """A terminal cell's colour as rich calls it."""
    if name == "default":
        return None
    if len(name) == 6 and set(name) <= set("0123456789abcdef"):
        return f"#{name}"
    return name.replace("brown", "yellow").replace("bright", "bright_")


def drawn(screen: Screen, file: Path, title: str) -> None:
    """What the terminal shows, as an SVG."""
    rows = screen.rows()
    console = Console(record=True, width=len(rows[0]), file=io.StringIO(), force_terminal=True, highlight=False)
    for row in rows:
        line = Text(no_wrap=True)
        for cell in row:
            style = Style(
                color=coloured(cell.fg),
                bold=cell.bold,
                italic=cell.italics,
                underline=cell.underscore,
                reverse=cell.reverse,
            )
            line.append(cell.data, style)
        console.print(line)
    console.save_svg(str(file), title=title)


def main() -> None:
    DOCS.mkdir(exist_ok=True)
    with tempfile.TemporaryDirectory() as folder:
        places = {name: f"{folder}/{name}" for name in ("XDG_DATA_HOME", "XDG_STATE_HOME", "XDG_CONFIG_HOME")}
        options = ["--temperature", "0", "--num-predict", "140"]
        screen = Screen(["chat", "embedded", *options], Path(folder), places, rows=34, columns=110)
        screen.wait(">>>")
        screen.enter(QUESTION)
        screen.wait(r"def \w(?s:.*)\non \(local.* per round · .* tok/s$")
        drawn(screen, DOCS / "chat-streaming.svg", "specollama chat embedded, while it writes")
        screen.wait(r">>>\n+embedded · on .* tokens$")
        drawn(screen, DOCS / "chat.svg", "specollama chat embedded")
        screen.say("/clear", "forgotten")
        screen.say("/origin on", "origin: on")
        screen.type("\x0c")  # Ctrl-L
        screen.wait(r"\A>>>")
        screen.say("Why is the sky blue?", r"\w")
        drawn(screen, DOCS / "chat-origin.svg", "/origin on: accepted green, recovered red, bonus cyan")
        screen.say(f"/trace {DOCS / 'trace.html'}", "written to")
        screen.enter("/bye")
        screen.left()


if __name__ == "__main__":
    main()
