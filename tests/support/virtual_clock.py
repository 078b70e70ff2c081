"""An event loop whose clock stands still while anything runs and jumps when all that is left to do is waiting."""

from __future__ import annotations

import asyncio
import heapq
from collections.abc import Coroutine
from typing import Any, TypeVar

T = TypeVar("T")


class VirtualLoop(asyncio.SelectorEventLoop):
    """`time()` is in seconds from 0; `asyncio.sleep` takes none of it in reality."""

    def __init__(self) -> None:
        super().__init__()
        self._now = 0.0

    def time(self) -> float:
        return self._now

    def _run_once(self) -> None:
        scheduled: list[Any] = self._scheduled  # type: ignore[attr-defined]
        while scheduled and scheduled[0].cancelled():
            heapq.heappop(scheduled)._scheduled = False
        if scheduled and not self._ready:  # type: ignore[attr-defined]
            self._now = max(self._now, scheduled[0].when())
        super()._run_once()  # type: ignore[misc]


def timed(work: Coroutine[Any, Any, T]) -> tuple[T, float]:
    """What the work gives, and the seconds of the virtual clock that it took."""
    with asyncio.Runner(loop_factory=VirtualLoop) as runner:
        return runner.run(work), runner.get_loop().time()
