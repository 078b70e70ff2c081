"""What an engine's rows cost, and its own stream: timed once, kept between runs."""

from __future__ import annotations

import hashlib
from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import aclosing
from functools import partial
from itertools import pairwise
from statistics import median
from time import perf_counter

from specollama.backends.engines.base import (
    DrawSettings,
    Engine,
    EngineInfo,
    PromptPosition,
    ScoringRequest,
    score_request,
)
from specollama.backends.llama_cpp.profiling import ModelProfile, make_monotonic
from specollama.backends.timings import valid_until
from specollama.config.settings import ModelRef
from specollama.errors import RunError
from specollama.pairs.routes.scoring_feasibility import max_rows, needs_request_per_row
from specollama.spec_decode.types import SamplingOptions

_GREEDY = DrawSettings(SamplingOptions(temperature=0))
_SEED = 1  # where each row has one
SIZES = (1, 8, 2, 4, 16)  # rows in a request, the most telling first
_LOOKS = 3  # at each size
_LIMIT = 3.0  # seconds
_STREAMED = 12  # tokens
_READ = 32  # tokens: each slot that a row takes has to read them first
_SAMPLE = (
    "The ship left the harbour at dawn, and the keeper of the light wrote its name into the log, as on every day. "
    "Nobody had asked him to, and nobody would ever read it, but a page was a page, and the sea gave him little else. "
)

_Ask = Callable[[ScoringRequest], Awaitable[object]]


def profile_key(target: ModelRef, facts: EngineInfo) -> str:
    """What an engine's costs depend on, as far as it can be seen from here."""
    said = ([at.url for at in target.endpoints], target.model, facts.version, facts.slots)
    return hashlib.sha256(repr(said).encode()).hexdigest()[:32]


async def profile_engine(
    engine: Engine, facts: EngineInfo, sampling: SamplingOptions, clock: Callable[[], float] = perf_counter
) -> ModelProfile:
    """Time an engine's rows, asked for as for a reply that is sampled so, and its own stream, for some seconds.

    Each request goes on where the one before was accepted whole, so that as much is new to the engine as in a reply.
    """
    text = await engine.tokenize(_SAMPLE * 8, whole=True)
    each = needs_request_per_row(engine.capabilities, sampling)
    ask = partial(score_request, engine, draws=DrawSettings(sampling, _SEED if each else None), by_row=each)
    await ask(ScoringRequest(PromptPosition(text[: _READ // 2])))  # a model may have to be loaded
    first = await _timed(lambda: ask(ScoringRequest(PromptPosition(text[:_READ]))), clock)
    before = await _stream_step(engine, PromptPosition(text[:_READ]), clock)
    looks, place = await _passes(ask, text, max_rows(engine.capabilities, facts, sampling), clock)
    passes = {size: min(times) for size, times in looks.items()}
    if 1 not in passes:
        raise RunError(f"{engine.url} gave too few tokens to a text of {len(_SAMPLE * 8)} characters")
    after = await _stream_step(engine, PromptPosition(text[:place]), clock)
    # A row is a step and more: where the stream seemed slower, something else was running.
    streamed = [step for step in (before, after) if step]
    return ModelProfile(
        passes=make_monotonic(passes),
        reading=max(0.0, first - passes[1]) / (_READ // 2),
        plain=min([*streamed, passes[1]]),
        until=valid_until(*looks.values(), streamed),
    )


async def _passes(
    ask: _Ask, text: list[int], most: int, clock: Callable[[], float]
) -> tuple[dict[int, list[float]], int]:
    """Seconds of a request by its rows, look by look, and the place in the text that was reached.

    The sizes are looked at in turn, two of them at least. A look is two requests, of which the second counts: for the
    first one the slots read what other sizes have added to the text.
    """
    began, looks, place = clock(), dict[int, list[float]](), _READ
    for number in range(_LOOKS):
        for size in [size for size in SIZES if size <= most]:
            if clock() - began > _LIMIT and (number or len(looks) > 1):
                return looks, place
            if place + 2 * size > len(text):
                continue
            for _ in range(2):
                request = ScoringRequest(PromptPosition(text[:place]), text[place : place + size - 1])
                took = await _timed(partial(ask, request), clock)
                place += size
            looks.setdefault(size, []).append(took)
    return looks, place


async def _timed(work: Callable[[], Awaitable[object]], clock: Callable[[], float]) -> float:
    began = clock()
    await work()
    return clock() - began


async def _stream_step(engine: Engine, place: PromptPosition, clock: Callable[[], float]) -> float | None:
    """Seconds between two tokens of a stream; None where it ends at once."""
    times = list[float]()
    async with aclosing(_texts(engine, place)) as texts:
        async for _ in texts:
            times.append(clock())
    if len(times) < 2:
        return None
    steps = [later - earlier for earlier, later in pairwise(times)]
    return min(median(steps), (times[-1] - times[0]) / (_STREAMED - 1)) or None  # a piece may hold several tokens


async def _texts(engine: Engine, place: PromptPosition) -> AsyncGenerator[str, None]:
    async with aclosing(engine.stream(place, _STREAMED, _GREEDY)) as stream:
        async for written in stream:
            if written.text:
                yield written.text
