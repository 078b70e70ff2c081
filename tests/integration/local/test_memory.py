"""What a pair opened in process holds in memory: its files, its caches, and little else."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from specollama.server.embedded.default_models import default_models

CONTEXT = 1024  # tokens
CACHES = 2 * CONTEXT * 30 * 2 * 192 * 2  # two models; 30 layers, keys and values of 192 numbers, 2 bytes each
BESIDES = 300 * 2**20  # bytes

PROGRAM = """
import asyncio, sys
from contextlib import aclosing
from pathlib import Path

import psutil
from specollama.config.settings import FileRef, PairSettings
from specollama.pairs.request import ChatInput
from specollama.pairs.pair import Pair
from specollama.backends.ollama.schema import Message

async def main(target, draft, context):
    options = {"num_ctx": int(context), "num_predict": 16, "num_thread": 1, "temperature": 0}
    drafts = (FileRef(Path(draft)),)
    settings = PairSettings(None, FileRef(Path(target)), drafts, options=options, requantize=False, lookahead=4)
    async with Pair(settings, {}) as pair:
        said = ChatInput([Message(role="user", content="Count from one to fifty. " * 8)])
        async with aclosing(pair.reply(said)) as events:
            async for event in events:
                pass
        print(psutil.Process().memory_info().rss, event.stats.accepted)

asyncio.run(main(*sys.argv[1:]))
"""


def test_memory_is_that_of_the_files_and_the_caches_and_little_more(places: Path) -> None:
    models = default_models()
    words = [sys.executable, "-c", PROGRAM, str(models["target"]), str(models["draft"]), str(CONTEXT)]
    done = subprocess.run(words, capture_output=True, text=True, check=True, timeout=400)
    held, accepted = map(int, done.stdout.split())
    files = sum(model.stat().st_size for model in models.values())
    print(f"{held / 2**20:.0f} MiB held, {(held - files - CACHES) / 2**20:.0f} MiB beside files and caches")
    assert accepted > 0
    assert held <= files + CACHES + BESIDES
