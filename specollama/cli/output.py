"""How a reply is shown: the answer on stdout, everything else on stderr."""

from __future__ import annotations

import json
from collections.abc import Callable

from rich.console import Console

from specollama.report import aligned, event_object, stats_lines
from specollama.stats import Done, Event, Status, Text
from specollama.types import Origin

ORIGIN_STYLES = {
    Origin.ACCEPTED: "green",
    Origin.RECOVERED: "red",
    Origin.BONUS: "cyan",
    Origin.PLAIN: "",
}

Show = Callable[[Event], None]


def stdout() -> Console:
    """The console of answers: no colours unless it is a terminal (and never under NO_COLOR)."""
    return Console(highlight=False, soft_wrap=True)


def stderr() -> Console:
    return Console(stderr=True, highlight=False, soft_wrap=True)


def as_text(*, origin: bool, stats: bool) -> Show:
    """Show a reply to people: its text as it comes, with colours by `origin` and counters after it if wanted."""
    answer, aside = stdout(), stderr()

    def show(event: Event) -> None:
        if isinstance(event, Status):
            aside.out(str(event), style="dim")
        elif isinstance(event, Text):
            target = aside if event.thinking else answer
            style = "dim" if event.thinking else ORIGIN_STYLES[event.origin] if origin else ""
            target.out(event.text, style=style, end="")
        else:
            _end(answer, aside, event, stats=stats)

    return show


def _end(answer: Console, aside: Console, event: Done, *, stats: bool) -> None:
    answer.out("")
    if stats:
        aside.out(aligned(stats_lines(event.stats)))


def as_json() -> Show:
    """Show a reply to programs: one JSON object a line, the last with the counters."""

    def show(event: Event) -> None:
        print(json.dumps(event_object(event), ensure_ascii=False), flush=True)

    return show


def legend() -> str:
    """What the colours stand for, as rich markup."""
    return "  ".join(f"[{style}]{origin}[/]" for origin, style in ORIGIN_STYLES.items() if style)
