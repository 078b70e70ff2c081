"""Refusals: an HTTP status and the text that goes into the body's `error`."""

from __future__ import annotations


class Fault(Exception):
    """The request can't be answered; raised anywhere below a route, answered by it."""

    def __init__(self, status: int, text: str) -> None:
        super().__init__(text)
        self.status = status
        self.text = text
