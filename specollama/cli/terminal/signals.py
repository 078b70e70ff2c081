"""SIGTERM and SIGHUP end a command as Ctrl-C does: cleanly, with what was written kept and servers' work ended."""

from __future__ import annotations

import signal
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType

from specollama.cli.terminal import standard_streams


class EndedBySignal(BaseException):
    """Raised where a signal ends a command outside the event loop. No `except Exception` may swallow it."""


@contextmanager
def end_on_signals() -> Iterator[None]:
    """Within the block SIGTERM and SIGHUP cancel what runs; the process then exits with 128 + the signal's number.

    A signal that the process was started to ignore stays ignored, as `nohup` does with SIGHUP. While a command is
    ending, further signals of the two change nothing: a closing terminal sends SIGHUP more than once.
    """
    received: list[int] = []

    def end(number: int, frame: FrameType | None) -> None:
        received.append(number)
        if len(received) == 1:
            _cancel_or_raise()

    before = _replace_handlers(end)
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
        if received:
            standard_streams.flush_or_discard()
            sys.exit(128 + received[0])


def leave_to_server() -> None:
    """For a command that runs a server which handles SIGTERM itself: SIGHUP is passed to it as SIGTERM."""
    for number in _ending():
        signal.signal(number, signal.SIG_DFL)
    if sys.platform != "win32" and signal.SIGHUP in _ending():
        signal.signal(signal.SIGHUP, lambda number, frame: signal.raise_signal(signal.SIGTERM))


def _ending() -> list[signal.Signals]:
    """The signals that end a command and aren't ignored; none outside the main thread, which can't handle any."""
    if sys.platform == "win32" or threading.current_thread() is not threading.main_thread():
        return []
    return [number for number in (signal.SIGTERM, signal.SIGHUP) if signal.getsignal(number) is not signal.SIG_IGN]


def _replace_handlers(handler: signal._HANDLER) -> dict[signal.Signals, signal._HANDLER]:
    """Install the handler. Returns those that were there."""
    return {number: signal.signal(number, handler) for number in _ending()}


def _cancel_or_raise() -> None:
    """Cancel all tasks of the running event loop; without one, raise EndedBySignal.

    An exception raised inside the loop's own code could leave it broken, and cleaning up needs it.
    """
    asyncio = sys.modules.get("asyncio")  # not imported: no loop runs
    try:
        loop = asyncio.get_running_loop() if asyncio else None
    except RuntimeError:
        loop = None
    if asyncio is None or loop is None:
        raise EndedBySignal

    def cancel() -> None:
        for task in asyncio.all_tasks(loop):
            task.cancel()

    loop.call_soon_threadsafe(cancel)  # wakes the loop up as well
