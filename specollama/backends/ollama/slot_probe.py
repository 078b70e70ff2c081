"""What a pair's servers can do, measured: nothing in Ollama's API tells how many slots work at once.

Kept in the cache directory for a day, by the servers' versions, the models' digests and the load-time options: when
one changes, it is measured anew. What was measured in a busy moment, or couldn't be measured, is kept for minutes.
"""

from __future__ import annotations

import asyncio
import hashlib
import json
from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from time import perf_counter, time
from typing import TypeVar

from pydantic import BaseModel, ConfigDict, ValidationError

from specollama.backends.http import send_in_order
from specollama.backends.ollama.model_info import ModelInfo
from specollama.backends.ollama.request_bodies import RequestTemplate
from specollama.backends.ollama.schema import GenerateReply
from specollama.backends.ollama.server_watch import is_loaded
from specollama.backends.timings import DOUBTED_FOR, doubt_text, duration_until, has_expired, valid_until
from specollama.config import paths
from specollama.errors import EndpointError
from specollama.spec_decode.acceptance import position_seed

_T = TypeVar("_T")

LIMIT = 2.0  # seconds
COLD_LIMIT = 60.0  # seconds
ROWS = 4  # asked at once; a draft of one token less
_SAMPLE = "1 2 3 4 5 6 7 8 9 10 11 12 13 14 15 16"
_SAMPLES = (_SAMPLE, f"0 {_SAMPLE}")  # a look at each, in turn: the second begins otherwise, and is read anew
_NEXT = (" 17", " 18", " 19", " 20", " 21", " 22", " 23")
_KEPT_FOR = 24 * 3600  # seconds: a server's settings may change, and a busy moment passes
_SPLIT = 1.5  # rows of unequal over rows of equal length, from which the cache is taken for split


class SlotProbe(BaseModel):
    """What was measured of a pair; times in seconds."""

    model_config = ConfigDict(frozen=True)

    round_trip: float
    """The target's server, an answer that needs no model."""
    step: float
    """The target, a token alone."""
    reading: float
    """The target, a token of a prompt that is read for the first time."""
    rows: float
    """The target, ROWS rows of unequal lengths at once, in slots that hold the prompt: a round."""
    equal_rows: float
    """The same when each needs but one token: a split cache shares passes then, and not otherwise."""
    draft: float
    """The draft model, ROWS - 1 tokens; 0 without one."""
    slots: int
    """Requests that the target was seen to work on at once, at most ROWS."""
    resident: bool
    """The models stay in memory, both at once."""
    holes: bool
    """Tokens come without log-probabilities: the server speculates by itself."""
    row_tokens: int
    """What num_predict has to be for one token to come."""
    until: float | None = None
    """When it is to be measured anew (seconds since 1970), since the looks lay far apart; None: a day later."""

    @property
    def doubt(self) -> str:
        """What to say of a verdict that rests on doubtful times: how long it stands; "" where they are sound."""
        return doubt_text(self.until)

    @property
    def unified(self) -> bool:
        """Whether rows of unequal lengths share passes."""
        return self.rows < _SPLIT * self.equal_rows

    def speedup(self, acceptance: float) -> float:
        """Tokens per second of a lanes round over plain, if each drafted token is accepted with this probability."""
        tokens = sum(acceptance**place for place in range(ROWS))
        cost = self.draft + self.rows
        return tokens * self.step / cost if cost > 0 else 0.0


@dataclass(frozen=True, slots=True)
class ProbeSample:
    """One look at all that is timed, as in Probe."""

    step: float
    reading: float
    rows: float
    equal_rows: float
    draft: float
    slots: int
    holes: bool
    row_tokens: int


def from_samples(
    looks: Sequence[ProbeSample], round_trip: float, resident: bool, now: Callable[[], float] = time
) -> SlotProbe:
    """The shortest times and the most slots of all looks; to be measured anew soon where they lie far apart."""
    steps, readings = [look.step for look in looks], [look.reading for look in looks]
    rows, equal = [look.rows for look in looks], [look.equal_rows for look in looks]
    drafts = [look.draft for look in looks]
    return SlotProbe(
        round_trip=round_trip,
        step=min(steps),
        reading=min(readings),
        rows=min(rows),
        equal_rows=min(equal),
        draft=min(drafts),
        slots=max(look.slots for look in looks),
        resident=resident,
        holes=any(look.holes for look in looks),
        row_tokens=max(look.row_tokens for look in looks),
        until=valid_until(steps, rows, equal, drafts, now=now),
    )


async def measure(
    target: RequestTemplate,
    target_model: ModelInfo,
    draft: RequestTemplate | None,
    draft_model: ModelInfo | None,
    *,
    limit: float = LIMIT,
    clock: Callable[[], float] = perf_counter,
) -> SlotProbe:
    """Time a pair whose models are loaded; the target alone where no model drafts.

    All costs in turn, and again where that took less than a third of `limit` (seconds). Raises EndpointError when a
    server fails.
    """
    round_trip, _ = await timed(target_model.server.version())
    began, looks = clock(), list[ProbeSample]()
    for sample in _SAMPLES:
        looks.append(await _look(sample, target, target_model, draft, draft_model))
        if clock() - began > limit / 3:
            break
    resident = await is_loaded(target_model) and (draft_model is None or await is_loaded(draft_model))
    return from_samples(looks, round_trip, resident)


async def _look(
    sample: str,
    target: RequestTemplate,
    target_model: ModelInfo,
    draft: RequestTemplate | None,
    draft_model: ModelInfo | None,
) -> ProbeSample:
    alone = await target_model.server.generate(target.raw(sample, num_predict=8, seed=0))
    _, first = await timed(rows_at_once(target, target_model, _round(sample, 0)))  # each slot reads its prompt
    rows, replies = await timed(rows_at_once(target, target_model, _round(sample, ROWS)))
    equal_rows, _ = await timed(rows_at_once(target, target_model, _round(sample, ROWS)))
    drafting = 0.0
    if draft and draft_model:
        drafting, _ = await timed(draft_model.server.generate(draft.raw(sample, num_predict=ROWS - 1, seed=0)))
    return ProbeSample(
        step=decode_seconds_per_token(alone),
        reading=prefill_seconds_per_token(first),
        rows=rows,
        equal_rows=equal_rows,
        draft=drafting,
        slots=count_slots(replies),
        holes=has_holes(alone),
        row_tokens=2 if all(reply.done_reason == "length" and not reply.response for reply in replies) else 1,
    )


def _round(sample: str, begin: int) -> list[str]:
    """The prompts of one round's rows: the second follows where the first had everything accepted."""
    accepted = sample + "".join(_NEXT[:begin])
    drafted = _NEXT[begin : begin + ROWS - 1]
    return [accepted + "".join(drafted[:count]) for count in range(ROWS)]


async def timed(work: Awaitable[_T]) -> tuple[float, _T]:
    """Seconds that it took, and its result."""
    began = perf_counter()
    result = await work
    return perf_counter() - began, result


async def rows_at_once(requests: RequestTemplate, model: ModelInfo, prompts: Sequence[str]) -> list[GenerateReply]:
    """A token after each of the prompts, which go from the shortest to the longest; asked longest first."""
    longest_first = reversed(list(enumerate(prompts)))
    bodies = [requests.raw(prompt, num_predict=1, seed=position_seed(0, place)) for place, prompt in longest_first]
    return await send_in_order(partial(model.server.generate, body) for body in bodies)


def decode_seconds_per_token(reply: GenerateReply) -> float:
    """Seconds a token. The first of `eval_count` tokens came with the prompt."""
    return (reply.eval_duration or 0) / max(1, (reply.eval_count or 1) - 1) / 1e9


def prefill_seconds_per_token(replies: Sequence[GenerateReply]) -> float:
    """Seconds a token of prompt, by the reply that had to read most."""
    slowest = max(replies, key=lambda reply: reply.prompt_eval_duration or 0)
    return (slowest.prompt_eval_duration or 0) / max(1, slowest.prompt_eval_count or 1) / 1e9


def has_holes(reply: GenerateReply) -> bool:
    """Whether tokens came without log-probabilities."""
    return "".join(entry.token for entry in reply.logprobs or ()) != reply.response


def count_slots(replies: Sequence[GenerateReply]) -> int:
    """How many of the requests, sent together, were seen to be worked on at once.

    Each worked at the end of its time; what came before was waiting, which the durations leave out.
    """
    spans = [(reply.total_duration or 0) - (reply.load_duration or 0) for reply in replies]
    works = [(reply.prompt_eval_duration or 0) + (reply.eval_duration or 0) for reply in replies]
    starts = [max(0, span - work) for span, work in zip(spans, works, strict=True)]
    middles = [start + work / 2 for start, work in zip(starts, works, strict=True)]
    return max(
        sum(start <= middle <= start + work for start, work in zip(starts, works, strict=True)) for middle in middles
    )


class _SavedProbe(BaseModel):
    """What is kept of a measurement: the Probe, or why there is none, until when (seconds since 1970)."""

    measured: SlotProbe | None = None
    why_not: str = ""
    until: float | None = None


def cache_file(requests: RequestTemplate, target: ModelInfo, draft: ModelInfo | None) -> Path | None:
    """Where the measurement of a pair is kept; None when a server doesn't tell a digest."""
    models = [model for model in (target, draft) if model]
    if not all(model.digest for model in models):
        return None
    parts = [f"{model.server.url} {model.version} {model.digest}" for model in models]
    parts.append(json.dumps(dict(requests.passed_on), sort_keys=True))
    name = hashlib.sha256("\n".join(parts).encode()).hexdigest()[:32]
    return paths.cache_folder() / "probes" / f"{name}.json"


def load(file: Path | None) -> SlotProbe | str | None:
    """An earlier measurement, or why it failed; None when there is none, it is old, or it can't be read."""
    if file is None:
        return None
    try:
        age = time() - file.stat().st_mtime
        kept = _SavedProbe.model_validate_json(file.read_bytes())
    except (ValidationError, OSError):
        return None
    if age > _KEPT_FOR or has_expired(kept.until, time()):
        return None
    return kept.measured or _again(kept.why_not, kept.until) or None


def save(outcome: SlotProbe | str, file: Path | None) -> None:
    """For the next time; a cache that can't be written to only means that it is measured anew.

    Why it failed is kept for minutes, as a doubtful measurement is: or the next reply would begin so late as well.
    """
    if file is None:
        return
    if isinstance(outcome, str):
        kept = _SavedProbe(why_not=outcome, until=time() + DOUBTED_FOR)
    else:
        kept = _SavedProbe(measured=outcome, until=outcome.until)
    with suppress(OSError):
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(kept.model_dump_json())


def _again(why: str, until: float | None) -> str:
    """Why there is no measurement, and when the next one is tried."""
    return f"{why}; tried again in {duration_until(until)}" if why and until is not None else why


async def probe_pair(
    target: RequestTemplate,
    target_model: ModelInfo,
    draft: RequestTemplate | None,
    draft_model: ModelInfo | None,
    *,
    patiently: bool = False,
) -> SlotProbe | str:
    """What was measured of the pair, now or within the last day, or why it could not be.

    `patiently`: now in any case, however long it takes up to a minute.
    """
    file = cache_file(target, target_model, draft_model)
    limit = COLD_LIMIT if patiently else LIMIT
    if not patiently and (known := load(file)):
        return known
    try:
        await asyncio.gather(
            *(
                model.server.generate(requests.load_only())
                for model, requests in ((target_model, target), (draft_model, draft))
                if model and requests
            )
        )
        async with asyncio.timeout(limit):
            probe = await measure(target, target_model, draft, draft_model, limit=limit)
    except TimeoutError:
        why = f"measuring the pair took longer than {limit:g} s: `specollama pairs --measure` takes its time"
        save(why, file)
        return _again(why, time() + DOUBTED_FOR if file else None)
    except EndpointError as error:
        return f"measuring the pair failed: {error}"
    save(probe, file)
    return probe
