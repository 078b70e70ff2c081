"""An event loop beside the program, for code that isn't asynchronous: in threads, and in notebooks whose own runs."""

from __future__ import annotations

import asyncio
import atexit
import sys
import threading
from collections.abc import AsyncGenerator, Coroutine, Generator
from contextlib import aclosing, suppress
from typing import Any, TypeVar

T = TypeVar("T")

_PATIENCE = 5.0  # seconds that work gets to end with the program

_lock = threading.Lock()
_loop: asyncio.AbstractEventLoop | None = None
_thread: threading.Thread | None = None


def run_sync(coroutine: Coroutine[Any, Any, T]) -> T:
    """Its result. What interrupts the wait, Ctrl-C say, cancels it."""
    future = asyncio.run_coroutine_threadsafe(coroutine, _running())
    try:
        return future.result()
    finally:
        future.cancel()


def iterate_sync(generator: AsyncGenerator[T, None]) -> Generator[T, None, None]:
    """Its items. Left early, it is closed before this returns.

    One task drives it from beginning to end, since a generator's time limits belong to the task that entered them; it
    goes one item ahead at most.
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


def _running() -> asyncio.AbstractEventLoop:
    """The loop, begun when it is first wanted, and anew in a forked process, which has no threads of its parent."""
    global _loop, _thread
    with _lock:
        if _loop is None or _thread is None or not _thread.is_alive():
            _loop = asyncio.new_event_loop()
            _thread = threading.Thread(target=_loop.run_forever, name="specollama", daemon=True)
            _thread.start()
            atexit.register(_stop, _loop, _thread)
        return _loop


def _stop(loop: asyncio.AbstractEventLoop, thread: threading.Thread) -> None:
    """At the end of the program: what was left open ends in order."""
    if thread.is_alive():
        with suppress(TimeoutError):
            asyncio.run_coroutine_threadsafe(_all_ended(), loop).result(_PATIENCE)
        loop.call_soon_threadsafe(loop.stop)
        thread.join()
        loop.close()


async def _all_ended() -> None:
    tasks = asyncio.all_tasks() - {asyncio.current_task()}
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)
