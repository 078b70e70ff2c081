"""A text that comes in pieces, as blocks: those that won't change any more are shown once, the last one is redrawn."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Protocol

from markdown_it import MarkdownIt
from rich.console import Console, ConsoleOptions, RenderableType, RenderResult
from rich.markdown import Markdown
from rich.segment import Segment
from rich.text import Text as RichText

from specollama.cli.terminal.escaping import escape_controls
from specollama.spec_decode.events import Text

_PARSER = MarkdownIt("commonmark", {"html": False}).enable("strikethrough").enable("table")


def settled_length(text: str) -> int:
    """How many characters of a markdown text are whole blocks, which nothing that follows can change.

    A line that isn't whole may yet turn out to belong to the block before it: `*` begins a list, `*a` doesn't.
    """
    text = text[: text.rfind("\n") + 1]
    tops = [token.map for token in _PARSER.parse(text) if token.level == 0 and token.nesting >= 0 and token.map]
    if len(tops) < 2:
        return 0
    lines = re.findall(r"[^\n]*\n|[^\n]+", text)
    return sum(len(line) for line in lines[: tops[-1][0]])


class TextBlocks(Protocol):
    """`feed` gives what is whole now, `tail` what isn't yet, `rest` the tail when nothing more comes."""

    def feed(self, event: Text) -> RenderableType | None: ...

    def tail(self) -> RenderableType | None: ...

    def rest(self) -> RenderableType | None: ...


class MarkdownBlocks:
    """Markdown as it is meant; `style` for all of it."""

    def __init__(self, style: str = "none") -> None:
        self._text, self._style = "", style

    def feed(self, event: Text) -> RenderableType | None:
        self._text += escape_controls(event.text)
        if "\n" not in event.text:  # a block ends with a line
            return None
        length = settled_length(self._text)
        whole, self._text = self._text[:length], self._text[length:]
        return self._shown(whole, apart=True) if whole.strip() else None

    def tail(self) -> RenderableType | None:
        return self._shown(_closed(self._text)) if self._text.strip() else None

    def rest(self) -> RenderableType | None:
        shown, self._text = self.tail(), ""
        return shown

    def _shown(self, text: str, *, apart: bool = False) -> RenderableType:
        return _Trimmed(_Markdown(text, self._style), apart)


class _Markdown(Markdown):
    """Rich's, but for HTML: a terminal can't show what it means, and rich would leave it out."""

    def __init__(self, text: str, style: str) -> None:
        super().__init__("", style=style, code_theme="ansi_dark", hyperlinks=False)
        self.parsed = _PARSER.parse(text)


@dataclass(frozen=True, slots=True)
class _Trimmed:
    """Without the empty lines around it; `apart`: one line from what follows, if it shows anything."""

    shown: RenderableType
    apart: bool

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        lines = console.render_lines(self.shown, options, pad=False)
        filled = [number for number, line in enumerate(lines) if any(segment.text.strip() for segment in line)]
        for line in lines[filled[0] : filled[-1] + 1] if filled else ():
            yield from line
            yield Segment.line()
        if filled and self.apart:
            yield Segment.line()


def _closed(text: str) -> str:
    """The tail without a line that is about to become a fence: it would flash up as text."""
    return re.sub(r"\n`{1,2}$", "\n", text)


class LineBlocks:
    """The text as it was written, line by line, each piece in its own style."""

    def __init__(self, styles: dict[str, str] | None = None, style: str = "") -> None:
        self._styles, self._style = styles or {}, style
        self._line = RichText()

    def feed(self, event: Text) -> RenderableType | None:
        self._line.append(escape_controls(event.text), self._styles.get(event.origin, self._style))
        lines = self._line.split("\n", allow_blank=True)
        if len(lines) == 1:
            return None
        self._line = lines.pop()
        return RichText("\n").join(lines)

    def tail(self) -> RenderableType | None:
        return self._line if self._line.plain else None

    def rest(self) -> RenderableType | None:
        shown, self._line = self.tail(), RichText()
        return shown
