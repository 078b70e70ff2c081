"""The one thread that runs all models, so that the event loop stays free for streaming and interrupts.

All models of the process share it. llama.cpp starts a set of threads for each thread that calls it, and the threads of
a set wait for each other in a busy loop. With a second set on the same cores a pass takes 1.5 times as long.
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
    """Run `work` on the model thread and return its result. Raises what `work` raises.

    `work` gets a function that returns True once the caller was cancelled.
    """
    stopped = Event()
    try:
        return await asyncio.get_running_loop().run_in_executor(_POOL, work, stopped.is_set)
    finally:
        stopped.set()
