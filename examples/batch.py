"""Many prompts at once: one JSON line for each line of a file, in its order.

    python examples/batch.py coder prompts.txt > answers.jsonl

`specollama batch` does the same for answers that people review: it goes on where it was after a crash.
"""

import asyncio
import json
import sys
from pathlib import Path

from specollama import AsyncClient

AT_ONCE = 4  # replies; those for which the target has no slots left run plain


async def answer_all(pair: str, prompts: list[str]) -> None:
    async with AsyncClient() as client:
        slots = asyncio.Semaphore(AT_ONCE)

        async def answer(prompt: str) -> str:
            async with slots:
                reply = await client.generate(pair, prompt)
            return json.dumps({"prompt": prompt, "answer": reply.response, "route": reply.specollama["route"]})

        for line in await asyncio.gather(*map(answer, prompts)):
            print(line)


def main(pair: str, file: str) -> None:
    asyncio.run(answer_all(pair, Path(file).read_text(encoding="utf-8").splitlines()))


if __name__ == "__main__":
    main(*sys.argv[1:])
