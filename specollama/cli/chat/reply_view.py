"""A reply at a terminal: blocks that are whole are printed once, under them the last one and a line of counts."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from time import monotonic

from rich.console import Console, ConsoleOptions, Group, RenderableType, RenderResult
from rich.live import Live
from rich.segment import Segment
from rich.text import Text as RichText

from specollama.cli.chat.markdown_stream import LineBlocks, MarkdownBlocks, TextBlocks
from specollama.cli.chat.progress import ReplyProgress
from specollama.cli.terminal.escaping import escape_controls
from specollama.cli.terminal.output import ORIGIN_STYLES
from specollama.spec_decode.events import Done, Event, Text, ToolCalls
from specollama.spec_decode.types import Origin

THEMES: dict[str, dict[Origin, str]] = {
    "default": ORIGIN_STYLES,
    "colourblind": {
        Origin.ACCEPTED: "blue",
        Origin.RECOVERED: "yellow underline",
        Origin.BONUS: "cyan italic",
        Origin.PLAIN: "",
    },
    "mono": {Origin.ACCEPTED: "", Origin.RECOVERED: "underline", Origin.BONUS: "italic", Origin.PLAIN: "bold"},
}

_REDRAW = 0.07  # seconds between two drawings of the last block at least: smooth to the eye
_REST = 15  # times what a drawing took, before the next: a long block takes no time from the models


@dataclass(slots=True)
class ViewSettings:
    """How replies are shown."""

    origin: bool = False
    markdown: bool = True
    wordwrap: bool = True
    fold: bool = False
    theme: str = "default"
    verbose: bool = False

    @property
    def styles(self) -> dict[Origin, str]:
        return THEMES[self.theme]


class ReplyView:
    """Shows the events of one reply as they come; `end` has to be called, however it ends.

    Drawn from the event loop that runs: after an event at once, or a moment later where the last drawing is fresh.
    """

    def __init__(
        self, console: Console, look: ViewSettings, progress: ReplyProgress, clock: Callable[[], float] = monotonic
    ) -> None:
        self._console, self._look, self._progress, self._clock = console, look, progress, clock
        self._live: Live | None = None
        self._blocks: TextBlocks | None = None
        self._thinking = False
        self._next = 0.0  # drawing, at the earliest
        self._due: asyncio.TimerHandle | None = None
        self._later: list[str] = []  # what would break into the answer

    def __call__(self, event: Event) -> None:
        if isinstance(event, Text):
            self._text(event)
        elif isinstance(event, ToolCalls):
            self._close()
            for call in event.calls:
                self._console.print(_called(call))
        elif isinstance(event, Done):
            self.end()
            return
        self._draw_soon()

    def say(self, line: str) -> None:
        """A line of ours: now, or after the answer that has begun."""
        if self._blocks is None:
            self._console.print(RichText(line, style="dim"))
        else:
            self._later.append(line)

    def start(self) -> None:
        """Before anything came: the line of counts says that it is waited for."""
        self._live = Live(console=self._console, auto_refresh=False, transient=True, redirect_stdout=False)
        self._live.start()
        self._draw()

    def end(self) -> None:
        """No more will come: what isn't whole is printed as it is."""
        self._close()
        if self._due:
            self._due.cancel()
            self._due = None
        if self._live:
            self._live.update(RichText(""), refresh=False)
            self._live.stop()
            self._live = None
        for line in self._later:
            self._console.print(RichText(line, style="dim"))
        self._later.clear()

    def _text(self, event: Text) -> None:
        if self._blocks is None or event.thinking != self._thinking:
            self._close()
            self._thinking = event.thinking
            self._blocks = self._new_blocks()
        if (whole := self._blocks.feed(event)) is not None:
            self._print(whole)

    def _new_blocks(self) -> TextBlocks:
        if self._thinking:
            return LineBlocks(style="dim italic")
        if self._look.origin:
            return LineBlocks({str(origin): style for origin, style in self._look.styles.items()})
        return MarkdownBlocks() if self._look.markdown else LineBlocks()

    def _close(self) -> None:
        """What is open ends here."""
        if self._blocks is None:
            return
        rest, self._blocks = self._blocks.rest(), None
        if self._thinking and self._look.fold:
            self._console.print(RichText(self._thought(), style="dim"))
        elif rest is not None:
            self._print(rest, last=True)

    def _thought(self) -> str:
        begun, ended = self._progress.first, self._progress.thinking_ended or self._progress.now
        seconds = ended - begun if begun is not None else 0.0
        return f"(thought for {seconds:.1f} s, {self._progress.thought} tokens; /show thinking)"

    def _print(self, whole: RenderableType, *, last: bool = False) -> None:
        """Above the part that is redrawn, in the same write."""
        if self._thinking and self._look.fold:
            return
        if self._live:
            self._live.update(RichText("") if last else self._picture(), refresh=False)
        self._console.print(whole)
        if last and self._thinking:
            self._console.print()

    def _draw_soon(self) -> None:
        if self._live is None or self._due is not None:
            return
        wait = self._next - self._clock()
        if wait <= 0:
            self._draw()
        else:
            self._due = asyncio.get_running_loop().call_later(wait, self._draw)

    def _draw(self) -> None:
        self._due = None
        if self._live:
            began = self._clock()
            self._live.update(self._picture(), refresh=True)
            ended = self._clock()
            self._next = ended + max(_REDRAW, _REST * (ended - began))

    def _picture(self) -> RenderableType:
        tail = self._blocks.tail() if self._blocks and not (self._thinking and self._look.fold) else None
        line = self._progress.line() or "..."
        if self._thinking and self._blocks:
            line = f"thinking · {line}"
        status = RichText(line, style="dim", no_wrap=True, overflow="ellipsis")
        return status if tail is None else Group(_Last(tail), status)


@dataclass(frozen=True, slots=True)
class _Last:
    """As many of the last lines as the terminal can redraw."""

    shown: RenderableType

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        lines = console.render_lines(self.shown, options, pad=False)
        for line in lines[-max(1, console.height - 2) :]:
            yield from line
            yield Segment.line()


def _called(call: object) -> RichText:
    function = call.get("function") if isinstance(call, dict) else None
    if not isinstance(function, dict):
        return RichText(escape_controls(json.dumps(call, ensure_ascii=False)), style="magenta")
    arguments = function.get("arguments")
    given = ", ".join(_argument(arguments)) if isinstance(arguments, dict) else str(arguments)
    return RichText(escape_controls(f"calls {function.get('name')}({given})"), style="magenta")


def _argument(arguments: dict[str, object]) -> Iterator[str]:
    for name, value in arguments.items():
        yield f"{name}={json.dumps(value, ensure_ascii=False)}"
