"""What a pair's servers can do, measured: nothing in Ollama's API tells how many slots work at once.

Kept in the cache directory, by the servers' versions and the models' digests: when one changes, it is measured
anew.
"""

from __future__ import annotations

import asyncio
import hashlib
from collections.abc import Sequence
from pathlib import Path
from time import perf_counter

import platformdirs
from pydantic import BaseModel, ConfigDict, ValidationError

from specollama.acceptance import position_seed
from specollama.backends.facts import Model
from specollama.backends.ollama import Requests
from specollama.wire import GenerateReply

ROWS = 4  # asked at once; a draft of one token less
_SAMPLE = "1 2 3 4 5 6 7 8 9 10 11 12 13 14 15 16"
_NEXT = (" 17", " 18", " 19")


class Probe(BaseModel):
    """Measured times of a pair, in seconds."""

    model_config = ConfigDict(frozen=True)

    step: float
    """The target, a token alone."""
    rows: float
    """The target, ROWS rows at once, each in a slot that holds the rest of its prompt."""
    draft: float
    """The draft model, ROWS - 1 tokens."""
    slots: int
    """Requests that the target was seen to work on at once, at most ROWS."""

    def speedup(self, acceptance: float) -> float:
        """Tokens per second of a lanes round over plain, if each drafted token is accepted with this probability."""
        tokens = sum(acceptance**place for place in range(ROWS))
        return tokens * self.step / (self.draft + self.rows)


async def measure(target: Requests, target_model: Model, draft: Requests, draft_model: Model) -> Probe:
    """Time a pair whose models are loaded. Raises EndpointError when a server fails."""
    prompts = [_SAMPLE + "".join(_NEXT[:count]) for count in range(ROWS)]
    alone = await target_model.server.generate(target.raw(_SAMPLE, num_predict=8, seed=0))
    await _rows(target, target_model, prompts)  # the first time, each slot reads its prompt
    began = perf_counter()
    replies = await _rows(target, target_model, prompts)
    rows = perf_counter() - began
    await draft_model.server.generate(draft.raw(_SAMPLE, num_predict=1, seed=0))
    began = perf_counter()
    await draft_model.server.generate(draft.raw(_SAMPLE, num_predict=ROWS - 1, seed=0))
    return Probe(step=_step(alone), rows=rows, draft=perf_counter() - began, slots=_slots(replies))


async def _rows(requests: Requests, model: Model, prompts: Sequence[str]) -> list[GenerateReply]:
    longest_first = reversed(list(enumerate(prompts)))
    bodies = [requests.raw(prompt, num_predict=1, seed=position_seed(0, place)) for place, prompt in longest_first]
    return await asyncio.gather(*(model.server.generate(body) for body in bodies))


def _step(reply: GenerateReply) -> float:
    """Seconds a token. The first of `eval_count` tokens came with the prompt."""
    return (reply.eval_duration or 0) / max(1, (reply.eval_count or 1) - 1) / 1e9


def _slots(replies: Sequence[GenerateReply]) -> int:
    """How many of the requests didn't wait for another: waiting is what the durations leave out."""
    waits = [
        (reply.total_duration or 0)
        - (reply.load_duration or 0)
        - (reply.prompt_eval_duration or 0)
        - (reply.eval_duration or 0)
        for reply in replies
    ]
    work = max((reply.prompt_eval_duration or 0) + (reply.eval_duration or 0) for reply in replies)
    return sum(wait < work / 2 for wait in waits)


def cache_file(target: Model, draft: Model) -> Path | None:
    """Where the measurement of a pair is kept; None when a server doesn't tell a digest."""
    if not target.digest or not draft.digest:
        return None
    parts = [f"{model.server.url} {model.version} {model.digest}" for model in (target, draft)]
    name = hashlib.sha256("\n".join(parts).encode()).hexdigest()[:32]
    return platformdirs.user_cache_path("specollama") / "probes" / f"{name}.json"


def recall(file: Path | None) -> Probe | None:
    """An earlier measurement; None when there is none, or it can't be read."""
    if file is None or not file.exists():
        return None
    try:
        return Probe.model_validate_json(file.read_bytes())
    except (ValidationError, OSError):
        return None


def keep(probe: Probe, file: Path | None) -> None:
    if file is None:
        return
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(probe.model_dump_json())
