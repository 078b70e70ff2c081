"""Benchmark of a server's slots: requests processed at once, whether they share passes and reuse the KV cache."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

from specollama.backends.ollama.model_info import ModelInfo
from specollama.backends.ollama.request_bodies import RequestTemplate
from specollama.backends.ollama.server_watch import is_loaded
from specollama.backends.ollama.slot_probe import (
    count_slots,
    decode_seconds_per_token,
    has_holes,
    prefill_seconds_per_token,
    rows_at_once,
    timed,
)
from specollama.errors import EndpointError
from specollama.tools.doctor.findings import LanesFinding

COUNTS = (2, 4, 8)
LIMIT = 120.0  # seconds
_TIMES = 2  # replies that are timed; the fastest counts: what else the machine does only adds to it
_ROUNDS = 2  # of rows, likewise
_REPEATS = 3  # of rows with texts of their own, likewise
_ACCEPTED = 0.7  # of a round's rows, before the next begins: as of a fair draft
_SHARED = 1.45  # rows over one row that reads as much, from which they don't share a pass
_READ_AGAIN = 0.5  # of the first time, that reading a prompt again takes where it wasn't kept
_SHORT = 0.02  # seconds of reading, below which it doesn't show whether a prompt is kept
_DRAFT = 8  # tokens
_STORY = (
    "The ship left the port at dawn and the man at the light wrote the name in the book as on every day of the year "
    "when the wind came from the west and the sea was high and no one could see the shore from the deck or the deck "
    "from the shore so that the bell was all there was to tell the men where the rocks lay under the white water and "
    "how far it was to the open sea that night"
)
_WORDS = [f" {word}" for word in _STORY.split()]


async def measure_slots(
    target: RequestTemplate, target_model: ModelInfo, draft: RequestTemplate, draft_model: ModelInfo
) -> LanesFinding:
    """Load both models and time them, which takes some seconds. Raises EndpointError, and TimeoutError after LIMIT."""
    async with asyncio.timeout(LIMIT):
        for requests, model in ((target, target_model), (draft, draft_model)):
            await model.server.generate(requests.load_only())
        draft_step, draft_overhead = await _draft_costs(draft, draft_model)
        await target_model.server.generate(target.raw("".join(_WORDS), num_predict=2, seed=0))  # all of it into memory
        alone = [
            await target_model.server.generate(target.raw("".join(_WORDS[:20]), num_predict=12, seed=0))
            for _ in range(_TIMES)
        ]
        keeps = await _keeps_prompts(target, target_model)
        rows, slots, reading = await _time_rounds(target, target_model)
        told = bool(alone[0].logprobs)
        return LanesFinding(
            step=min(map(decode_seconds_per_token, alone)),
            reading=reading,
            rows=rows,
            slots=slots,
            unified=await _rows_share_a_pass(target, target_model, slots),
            keeps=keeps,
            resident=await is_loaded(target_model) and await is_loaded(draft_model),
            logprobs=told,
            itself=told and has_holes(alone[0]),
            draft_step=draft_step,
            draft_overhead=draft_overhead,
        )


async def _draft_costs(requests: RequestTemplate, model: ModelInfo) -> tuple[float, float]:
    """Seconds for one drafted token, and the fixed seconds of a request."""
    prompt = "".join(_WORDS[:20])
    took: dict[int, list[float]] = {1: [], _DRAFT: []}
    more = _DRAFT - 1
    for _ in range(1 + _TIMES):  # the first one reads the prompt
        for count, times in took.items():
            seconds, reply = await timed(model.server.generate(requests.raw(prompt, num_predict=count, seed=0)))
            times.append(seconds)
        more = max(1, (reply.eval_count or _DRAFT) - 1)
    one, several = (min(times) for times in took.values())
    step = max(0.0, several - one) / more
    return step, max(0.0, one - step)


async def _keeps_prompts(requests: RequestTemplate, model: ModelInfo) -> bool:
    """Whether the next request reuses the KV cache of an equal prompt."""
    prompt = "".join([*_WORDS, *reversed(_WORDS)])
    replies = [await model.server.generate(requests.raw(prompt, num_predict=1, seed=0)) for _ in range(2)]
    first, again = ((reply.prompt_eval_duration or 0) / 1e9 for reply in replies)
    return first < _SHORT or again < _READ_AGAIN * first


async def _time_rounds(requests: RequestTemplate, model: ModelInfo) -> tuple[dict[int, float], int, float]:
    """Seconds of a round by its rows, requests processed at once, and seconds to prefill one token."""
    took, seen, reading = dict[int, float](), 1, 0.0
    for count in COUNTS:
        begins = [10 + round(number * _ACCEPTED * count) for number in range(_ROUNDS + 1)]
        reading = max(
            reading, prefill_seconds_per_token(await rows_at_once(requests, model, _round_prompts(begins[0], count)))
        )
        rounds = [await timed(rows_at_once(requests, model, _round_prompts(begin, count))) for begin in begins[1:]]
        took[count] = min(seconds for seconds, _ in rounds)
        seen = max(seen, min(count_slots(replies) for _, replies in rounds))  # what was seen every time
    return took, seen, reading


def _round_prompts(begin: int, count: int) -> list[str]:
    """The prompts of a round with `count` rows; the first prompt has `begin` words."""
    return ["".join(_WORDS[: begin + drafted]) for drafted in range(count)]


async def _rows_share_a_pass(requests: RequestTemplate, model: ModelInfo, lanes: int) -> bool | None:
    """Whether rows with unequal prefill lengths share a pass, compared with one row that prefills as many tokens.

    None where no two requests run at once. Each row has a text of its own, so that it comes to the slot that holds its
    beginning. Long and short ones in turn, since a split cache puts neighbours of one length into a pass. The first
    request starts a pass alone where the engine was idle.
    """
    if lanes < 2:
        return None
    more = [3 - 2 * (lane % 2) for lane in range(lanes)]
    together = min([await _time_own_rows(requests, model, more) for _ in range(_REPEATS)])
    alone = min([await _time_own_rows(requests, model, [sum(more)]) for _ in range(_REPEATS)])
    first = min([await _time_own_rows(requests, model, [1]) for _ in range(_REPEATS)])
    return together < _SHARED * (alone + first)


async def _time_own_rows(requests: RequestTemplate, model: ModelInfo, more: Sequence[int]) -> float:
    """Seconds for one row a lane, where lane i prefills `more[i]` words beyond its slot's KV cache."""
    texts = [_WORDS[3 * lane : 3 * lane + 12] for lane in range(len(more))]
    await rows_at_once(requests, model, ["".join(text) for text in texts])
    longer = ["".join([*text, *_WORDS[40 : 40 + words]]) for text, words in zip(texts, more, strict=True)]
    seconds, _ = await timed(rows_at_once(requests, model, longer))
    return seconds


async def slots_or_reason(
    target: RequestTemplate, target_model: ModelInfo, draft: RequestTemplate, draft_model: ModelInfo
) -> LanesFinding | str:
    """The measurements, or one line that says why there are none."""
    try:
        return await measure_slots(target, target_model, draft, draft_model)
    except TimeoutError:
        return f"not measured: it took longer than {LIMIT:g} s"
    except EndpointError as error:
        return f"measuring failed: {error}"
