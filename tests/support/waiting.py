"""Waiting for what happens in other threads and processes."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

ENDLESS = 60  # seconds: only what never happens takes so long


def until(happened: Callable[[], Any]) -> None:
    """Wait until it is so; an AssertionError when it never is."""
    end = time.monotonic() + ENDLESS
    while not happened():
        assert time.monotonic() < end, "it never happens"
        time.sleep(0.01)
