"""The one thread that runs all models, so that streaming and interrupts work meanwhile.

One for the whole process, whatever the number of models: llama.cpp has threads of its own for each thread that calls
it, which wait for each other actively. With a second set of them on the same cores each pass takes half as long again.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from threading import Event
from typing import TypeVar

T = TypeVar("T")

_POOL = ThreadPoolExecutor(max_workers=1, thread_name_prefix="specollama-llama")


async def run_on_model_thread(work: Callable[[Callable[[], bool]], T]) -> T:
    """The outcome of `work`, which can ask whether to stop: when the caller was cancelled."""
    stopped = Event()
    try:
        return await asyncio.get_running_loop().run_in_executor(_POOL, work, stopped.is_set)
    finally:
        stopped.set()
