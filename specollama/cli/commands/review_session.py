"""A reviewer at a terminal: items shown, keys read, decisions written at once."""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from dataclasses import dataclass, field

import typer
from rich.console import Console
from rich.text import Text

from specollama.cli.commands import review_screen
from specollama.cli.terminal import output
from specollama.cli.terminal.editor import edit_text
from specollama.errors import SpecollamaError, UsageError
from specollama.tools.review.decisions import approve, edit, reject
from specollama.tools.review.regenerate import Regenerator
from specollama.tools.review.run_folder import ReviewRun
from specollama.tools.review.state import ItemStatus, ReviewItem, RunState


def queue(state: RunState, reviewer: str, ids: Sequence[str]) -> list[ReviewItem]:
    """The items to look at: those named, or else the open ones that the reviewer hasn't decided.

    Raises UsageError for an id that isn't there, or an item without a reply.
    """
    for id in ids:
        if id not in state.items:
            raise UsageError(f"--item {id}: there is no such item")
        if state.items[id].answer is None:
            raise UsageError(f"--item {id}: has no reply")
    if ids:
        return [state.items[id] for id in dict.fromkeys(ids)]
    return [item for item in state.with_status(ItemStatus.OPEN) if not item.decided_by(reviewer)]


@dataclass(slots=True)
class ReviewSession:
    """One reviewer's way through items."""

    run: ReviewRun
    who: str
    regenerator: Regenerator
    mark_below: float
    _console: Console = field(default_factory=lambda: output.stdout(wrap=True))

    def review_all(self, items: Sequence[ReviewItem]) -> None:
        """Until the last item is left or the reviewer quits; an interrupt between decisions loses none."""
        for number, item in enumerate(items, 1):
            if not self._look(item, f"{number} of {len(items)}"):
                return

    def _look(self, item: ReviewItem, place: str) -> bool:
        """Show the item until it is decided or skipped; whether to go on to the next."""
        while True:
            self._console.print(review_screen.screen(self.run.state, item, place, self.mark_below))
            left = None
            while left is None:
                self._console.print(review_screen.keys())
                left = self._press(_key(), item)
            if left != "again":
                return left == "next"

    def _press(self, key: str, item: ReviewItem) -> str | None:
        """What comes next: "next", "again" (the item changed), "quit"; None: another key."""
        try:
            match key:
                case "a":
                    self.run.append(self.who, approve(item))
                    return self._say("approved", "next")
                case "r":
                    return self._reject(item)
                case "e":
                    return self._edit(item)
                case "g" | "p":
                    return self._regenerate(item, plain=key == "p")
                case "s":
                    return self._say("skipped", "next")
                case "q":
                    return "quit"
        except SpecollamaError as error:
            self._console.print(Text(review_screen.printable(f"{error}"), style="red"))
        return None

    def _reject(self, item: ReviewItem) -> str | None:
        reason = _asked("why? (empty: not rejected) ")
        if not reason:
            return self._say("not rejected", None)
        self.run.append(self.who, reject(item, reason))
        return self._say("rejected", "next")

    def _edit(self, item: ReviewItem) -> str | None:
        text = edit_text(item.text, os.environ)
        if text == item.text:
            return self._say("nothing was changed", None)
        self.run.append(self.who, edit(item, text))
        return self._say("edited; what was decided before was about the other text", "again")

    def _regenerate(self, item: ReviewItem, *, plain: bool) -> str | None:
        self._say("regenerating ... (Ctrl-C keeps the present reply)", None)
        try:
            reply = self.regenerator.regenerate(item, plain=plain)
        except KeyboardInterrupt:
            return self._say("stopped; the present reply stays", None)
        same = reply.text == item.text
        self.run.append(self.who, reply)
        words = "the same text came again (at temperature 0 a new seed changes nothing)" if same else "another reply"
        return self._say(words, "again")

    def _say(self, words: str, left: str | None) -> str | None:
        self._console.print(Text(words, style="italic"))
        return left


def _key() -> str:
    try:
        return typer.getchar().lower()
    except EOFError:  # Ctrl-D
        return "q"


def _asked(question: str) -> str:
    sys.stdout.write(question)
    sys.stdout.flush()
    try:
        return input().strip()
    except (EOFError, KeyboardInterrupt):
        print()
        return ""
