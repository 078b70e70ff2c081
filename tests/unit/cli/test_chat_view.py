"""How a reply is drawn, where a server that writes what is written down can't bring it about."""

from __future__ import annotations

import io

import pyte
from rich.console import Console

from specollama.cli.chat.progress import ReplyProgress
from specollama.cli.chat.reply_view import ReplyView, ViewSettings
from specollama.spec_decode.events import Done, Event, Status, Text, ToolCalls
from specollama.spec_decode.metrics import Stats
from specollama.spec_decode.types import DoneReason, Origin

CLEAR_LINE, UP = "\x1b[2K", "\x1b[1A"


def drawn(*events: Event, look: ViewSettings | None = None, height: int = 24) -> str:
    """What is written to a terminal of 60 columns."""
    now = 0.0
    out, progress = io.StringIO(), ReplyProgress()
    console = Console(file=out, width=60, height=height, force_terminal=True, color_system=None)
    view = ReplyView(console, look or ViewSettings(), progress, clock=lambda: now)
    view.start()
    for event in events:
        now += 1.0  # so that each event is drawn
        progress.event(event, now)
        view(event)
    view.end()
    return out.getvalue()


def done() -> Done:
    return Done(DoneReason.STOP, Stats())


def test_a_call_of_a_tool_is_shown_as_what_it_calls() -> None:
    call = {"function": {"name": "clock", "arguments": {"zone": "UTC\x1b", "n": 2}}}
    shown = drawn(Text("Let me see.", Origin.PLAIN), ToolCalls((call,)), done())
    assert 'calls clock(zone="UTC\\u001b", n=2)' in shown
    assert shown.index("Let me see.") < shown.index("calls clock")


def test_of_what_is_longer_than_the_terminal_the_last_lines_are_redrawn() -> None:
    lines = [Text(f"{number}. line\n", Origin.PLAIN) for number in range(1, 31)]
    drawings = [part.splitlines() for part in drawn(*lines, height=10).split(UP) if "line" in part]
    *_, last, whole = drawings
    assert len(whole) > 30, "at the end all of it is printed"
    assert any("30 line" in line for line in last)
    assert max(map(len, drawings[:-1])) <= 10


def test_what_is_whole_is_written_once_however_much_follows() -> None:
    words = [Text(f"word{number} ", Origin.PLAIN) for number in range(50)]
    shown = drawn(Text("The first paragraph.\n\nThe second\n", Origin.PLAIN), *words, done())
    assert shown.count("The first paragraph.") == 1


def test_a_status_in_mid_reply_is_told_after_it() -> None:
    out = io.StringIO()
    console = Console(file=out, width=60, force_terminal=True, color_system=None)
    view = ReplyView(console, ViewSettings(), ReplyProgress())
    view.say("speculation: on (lanes)")
    view(Text("One", Origin.PLAIN))
    view.say("speculation: off (the draft went away)")
    view(Status(on=False, detail="the draft went away"))
    view(Text(" two", Origin.PLAIN))
    view(done())
    shown = out.getvalue()
    assert shown.index("on (lanes)") < shown.index("One two") < shown.index("off (the draft went away)")


def test_an_empty_line_between_paragraphs_stays_where_tokens_are_coloured() -> None:
    parts = [Text(part, Origin.ACCEPTED) for part in ("One.", "\n", "\n", "Two.")]
    screen = pyte.Screen(60, 24)
    pyte.Stream(screen).feed(drawn(*parts, done(), look=ViewSettings(origin=True)).replace("\n", "\r\n"))
    assert [line.strip() for line in screen.display][:4] == ["One.", "", "Two.", ""]
