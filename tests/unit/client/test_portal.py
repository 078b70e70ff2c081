"""The event loop behind the synchronous client."""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
from collections.abc import AsyncGenerator

import pytest

from specollama.client.portal import iterate_sync, run_sync

PROGRAM = """
import asyncio, os
from specollama.client.portal import iterate_sync, run_sync

async def endless():
    try:
        while True:
            yield os.getpid()
    finally:
        await asyncio.sleep(0)
        print("closed", flush=True)

opened = iterate_sync(endless())
next(opened)
child = os.fork() if {fork} else None
if child == 0:
    print("child", run_sync(asyncio.sleep(0, "works")), flush=True)
elif child:
    print("status", os.waitpid(child, 0)[1], flush=True)
os._exit(0) if child == 0 else None
"""


def test_a_coroutine_gives_its_result_or_raises() -> None:
    assert run_sync(asyncio.sleep(0, "done")) == "done"
    with pytest.raises(ZeroDivisionError):
        run_sync(_divide())


async def _divide() -> float:
    await asyncio.sleep(0)
    return 1 / 0


def test_a_generator_left_early_has_cleaned_up_when_the_call_returns() -> None:
    steps = list[str]()

    async def numbers() -> AsyncGenerator[int, None]:
        try:
            for number in range(1000):
                yield number
        finally:
            for step in ("one", "two"):
                await asyncio.sleep(0)  # anyio's own cancellation would break off here
                steps.append(step)

    items = iterate_sync(numbers())
    assert [next(items), next(items)] == [0, 1]
    items.close()
    assert steps == ["one", "two"]


def test_an_error_of_a_generator_is_raised_after_its_items() -> None:
    async def broken() -> AsyncGenerator[int, None]:
        yield 1
        raise ValueError("broken")

    items = iterate_sync(broken())
    assert next(items) == 1
    with pytest.raises(ValueError, match="broken"):
        next(items)


@pytest.mark.skipif(not hasattr(os, "fork"), reason="this system has no fork")
@pytest.mark.parametrize("fork", [False, True])
def test_a_program_that_ends_closes_what_is_open_and_a_forked_one_has_a_loop_of_its_own(fork: bool) -> None:
    command = [sys.executable, "-W", "ignore", "-c", PROGRAM.replace("{fork}", str(fork))]
    ended = subprocess.run(command, capture_output=True, text=True, timeout=60)
    assert ended.stdout.split("\n")[:-1] == (["child works", "status 0"] if fork else []) + ["closed"]
    assert ended.returncode == 0, ended.stderr
