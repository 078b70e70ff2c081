"""Separates a model's thinking from its answer by the tags <think> and </think>.

Like Ollama, it drops the tags and the white space next to them.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from enum import Enum, auto

OPENING_TAG, CLOSING_TAG = "<think>", "</think>"


class _Place(Enum):
    BEFORE = auto()  # only white space so far
    INSIDE = auto()
    AFTER = auto()  # between the closing tag and the answer
    ANSWER = auto()


@dataclass(slots=True)
class ThinkingSplitter:
    """Splits a raw reply that arrives piece by piece. `inside`: the prompt itself ended with the opening tag."""

    inside: bool = False
    _place: _Place = field(init=False)
    _held: str = ""
    _has_thought: bool = False  # some thinking was yielded

    def __post_init__(self) -> None:
        self._place = _Place.INSIDE if self.inside else _Place.BEFORE

    def feed(self, text: str) -> Iterator[tuple[str, bool]]:
        """Add a piece of the reply. Yields the text that may be shown now, and whether it is thinking."""
        self._held += text
        while True:
            place = self._place
            yield from self._step()
            if self._place is place:
                return

    def end(self) -> Iterator[tuple[str, bool]]:
        """End the reply. Yields the text held back so far, without white space after unfinished thinking."""
        held = self._held.rstrip() if self._place is _Place.INSIDE else self._held
        if held and self._place is not _Place.AFTER:
            yield held, self._place is _Place.INSIDE
        self._held = ""

    def _step(self) -> Iterator[tuple[str, bool]]:
        if self._place is _Place.BEFORE:
            self._open()
        elif self._place is _Place.INSIDE:
            yield from self._think()
        elif self._place is _Place.AFTER:
            self._held = self._held.lstrip()
            if self._held:
                self._place = _Place.ANSWER
        elif self._held:
            yield self._held, False
            self._held = ""

    def _open(self) -> None:
        begun = self._held.lstrip()
        if begun.startswith(OPENING_TAG):
            self._held, self._place = begun[len(OPENING_TAG) :], _Place.INSIDE
        elif not OPENING_TAG.startswith(begun):
            self._place = _Place.ANSWER

    def _think(self) -> Iterator[tuple[str, bool]]:
        if not self._has_thought:
            self._held = self._held.lstrip()
        before, closed, after = self._held.partition(CLOSING_TAG)
        if closed:
            shown, self._held, self._place = before.rstrip(), after, _Place.AFTER
        else:
            shown = _safe_prefix(self._held)
            self._held = self._held[len(shown) :]
        if shown:
            self._has_thought = True
            yield shown, True


def _safe_prefix(text: str) -> str:
    """Return `text` without a suffix that may be part of a closing tag or white space before one."""
    for length in range(min(len(text), len(CLOSING_TAG) - 1), 0, -1):
        if CLOSING_TAG.startswith(text[-length:]):
            return text[:-length].rstrip()
    return text.rstrip()
