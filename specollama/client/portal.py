"""Runs coroutines from synchronous code, on an event loop in a thread of its own: notebooks already run one themselves.

anyio's portal begins and ends the loop. Work runs as plain asyncio tasks on it, because anyio cancels an awaiting task
again and again, which would break off the clean-up of ours.
"""

from __future__ import annotations

import asyncio
import atexit
import os
import sys
import threading
from collections.abc import AsyncGenerator, Coroutine, Generator
from contextlib import ExitStack, aclosing
from typing import Any, TypeVar

from anyio.from_thread import start_blocking_portal

T = TypeVar("T")

_lock = threading.Lock()
_portal: _Portal | None = None


def run_sync(coroutine: Coroutine[Any, Any, T]) -> T:
    """Run the coroutine and return its result, or raise its exception. What interrupts the wait (Ctrl-C) cancels it."""
    future = asyncio.run_coroutine_threadsafe(coroutine, _loop())
    try:
        return future.result()
    finally:
        future.cancel()


def iterate_sync(generator: AsyncGenerator[T, None]) -> Generator[T, None, None]:
    """Yield the generator's items and raise its exceptions. When the caller stops early, the generator is closed first.

    One task drives the generator from beginning to end, because `asyncio.timeout` belongs to the task that entered it.
    It computes one item ahead at most.
    """
    queue: asyncio.Queue[tuple[bool, Any]] = asyncio.Queue(maxsize=1)
    task = run_sync(_started(generator, queue))
    try:
        while True:
            item, value = run_sync(queue.get())
            if item:
                yield value
            elif value is None:
                return
            else:
                raise value
    finally:
        if not sys.is_finalizing():  # then the thread stands still, and the end of the process closes all connections
            run_sync(_ended(task))


async def _started(generator: AsyncGenerator[T, None], queue: asyncio.Queue[tuple[bool, Any]]) -> asyncio.Task[None]:
    return asyncio.create_task(_pump(generator, queue))


async def _pump(generator: AsyncGenerator[T, None], queue: asyncio.Queue[tuple[bool, Any]]) -> None:
    try:
        async with aclosing(generator):
            async for item in generator:
                await queue.put((True, item))
    except Exception as error:  # noqa: BLE001 - raised where the items are wanted
        await queue.put((False, error))
    else:
        await queue.put((False, None))


async def _ended(task: asyncio.Task[None]) -> None:
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)


class _Portal:
    """anyio's event loop in a thread, from the first use until the program ends."""

    def __init__(self) -> None:
        self._opened = ExitStack()
        portal = self._opened.enter_context(start_blocking_portal(name="specollama"))
        self.process = os.getpid()
        self.loop: asyncio.AbstractEventLoop = portal.call(_running_loop)
        atexit.register(self._close)

    def _close(self) -> None:
        """Cancel what still runs, wait until it has cleaned up, and end the thread, which a forked process hasn't."""
        if os.getpid() == self.process:
            self._opened.close()


async def _running_loop() -> asyncio.AbstractEventLoop:
    return asyncio.get_running_loop()


def _loop() -> asyncio.AbstractEventLoop:
    """Return the loop. It begins with the first use, and anew in a forked process, which has no thread for it yet."""
    global _portal
    with _lock:
        if _portal is None or _portal.process != os.getpid():
            _portal = _Portal()
        return _portal.loop
