"""Forward-pass timings of a model on this machine, and drafters' calibration counts; saved between runs.

In the user's state directory, by the files, the load options and the machine. A file there that isn't what was
written is ignored, and said so.
"""

from __future__ import annotations

import hashlib
import os
import platform
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from time import perf_counter, time
from typing import Annotated

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from specollama.backends.llama_cpp.model import LlamaModel, LoadOptions
from specollama.backends.timings import has_expired, time_in_turn, valid_until
from specollama.config import paths
from specollama.config.atomic_file import replacement
from specollama.spec_decode.calibration import CONFIDENCE_BINS, INITIAL_EXPLORATION, LOG_ODDS_SHIFTS
from specollama.spec_decode.reply_length import BUCKETS

PASS_SIZES = (1, 8, 2, 4, 16, 3, 6, 12, 32)  # tokens in a pass, the most telling first
REPEATS = 3
_LIMIT = 1.0  # seconds a model
_ALWAYS = 2  # sizes that are timed however long it takes: a curve has a slope
_READ = 64  # tokens
_READINGS = 2
_BEFORE = 32  # tokens that are there already

_Counts = list[Annotated[float, Field(ge=0)]]


class ModelProfile(BaseModel):
    """Seconds of a forward pass by its tokens, and of a prefilled token.

    `plain`: of a token that the model writes alone, where that isn't a pass of one: an engine's own stream. `until`:
    when they are to be timed anew (seconds since 1970), since they scattered; None: they are sound.
    """

    model_config = ConfigDict(frozen=True, allow_inf_nan=False)

    passes: dict[Annotated[int, Field(ge=1)], Annotated[float, Field(gt=0)]] = Field(min_length=1)
    reading: float = Field(ge=0)
    plain: float | None = Field(default=None, gt=0)
    until: float | None = None


class CalibrationCounts(BaseModel):
    """A drafter's calibration: accepted and tested tokens, by confidence. The rest as in calibration.Calibration."""

    model_config = ConfigDict(frozen=True, allow_inf_nan=False)

    hits: _Counts = Field(min_length=CONFIDENCE_BINS, max_length=CONFIDENCE_BINS)
    trials: _Counts = Field(min_length=CONFIDENCE_BINS, max_length=CONFIDENCE_BINS)
    shifts: list[float] = Field(
        default=[0.0] * len(LOG_ODDS_SHIFTS), min_length=len(LOG_ODDS_SHIFTS), max_length=len(LOG_ODDS_SHIFTS)
    )
    spare: float = Field(default=INITIAL_EXPLORATION, ge=0)


class ReplyLengthCounts(BaseModel):
    """The lengths of a kind of replies, as in reply_length.ReplyLengths."""

    model_config = ConfigDict(frozen=True, allow_inf_nan=False)

    lived: _Counts = Field(min_length=BUCKETS, max_length=BUCKETS)
    ended: _Counts = Field(min_length=BUCKETS, max_length=BUCKETS)


class SavedProfile(BaseModel):
    """Everything that is saved about a pair.

    `models` by their key, `drafters` by rule, temperature and name, `lengths` by the kind of request.
    """

    models: dict[str, ModelProfile] = {}
    drafters: dict[str, CalibrationCounts] = {}
    lengths: dict[str, ReplyLengthCounts] = {}


def model_key(path: Path, options: LoadOptions) -> str:
    """A key of everything that a model's timings depend on."""
    file = path.stat()
    said = (platform.node(), os.cpu_count(), str(path.resolve()), file.st_size, file.st_mtime_ns, repr(options))
    return hashlib.sha256(repr(said).encode()).hexdigest()[:32]


def profile_file(*keys: str, folder: Path | None = None) -> Path:
    """Where what is known of a target and its drafts is kept: in `folder`, None: in the user's state directory."""
    name = hashlib.sha256("\n".join(keys).encode()).hexdigest()[:32]
    return (folder or paths.state_folder()) / "planner" / f"{name}.json"


def load(file: Path) -> tuple[SavedProfile, str]:
    """What is kept, and a line about why it is not to be used; "" where there is nothing to say.

    Doubtful costs whose time is over are left out.
    """
    try:
        kept, now = SavedProfile.model_validate_json(file.read_bytes()), time()
        believed = {key: costs for key, costs in kept.models.items() if not has_expired(costs.until, now)}
        return kept.model_copy(update={"models": believed}), ""
    except FileNotFoundError:
        return SavedProfile(), ""
    except ValidationError:
        return SavedProfile(), f"{file} is damaged: measured anew"
    except OSError as error:
        return SavedProfile(), f"{file} can't be read: {error.strerror or error}"


def save(kept: SavedProfile, file: Path) -> str:
    """Write it, whole or not at all; answers a line about why that can't be done, else ""."""
    try:
        file.parent.mkdir(parents=True, exist_ok=True)
        with replacement(file) as scratch:
            scratch.write_text(kept.model_dump_json(), encoding="utf-8")
    except OSError as error:
        return f"what was measured can't be kept in {file.parent}: {error.strerror or error}"
    return ""


def profile_model(
    model: LlamaModel,
    text: list[int],
    sizes: Sequence[int] = PASS_SIZES,
    repeats: int = REPEATS,
) -> ModelProfile:
    """Time a model for a second or two on the tokens of any text, by passes of these sizes, in turn.

    Raises RunError when llama.cpp fails.
    """
    room = min(_BEFORE + _READ, model.context_length)
    text = (text * (1 + room // len(text)))[:room]
    before = text[: room // 3]
    model.logits(text, 1)  # now the weights are in memory

    def took(upto: int, rows: int) -> float:
        model.logits(before, 1)
        return _timed(partial(model.logits, text[:upto], rows))

    works = {size: partial(took, len(before) + size, size) for size in sizes if len(before) + size <= room}
    times = time_in_turn(works, looks=repeats, limit=_LIMIT, always=_ALWAYS)
    reading = [took(room, 1) for _ in range(_READINGS)]
    return ModelProfile(
        passes=make_monotonic({size: min(looks) for size, looks in times.items()}),
        reading=min(reading) / (room - len(before)),
        until=valid_until(*times.values(), reading),
    )


def steps_in_turn(models: Sequence[LlamaModel], texts: Sequence[list[int]], looks: int) -> list[list[float]]:
    """Seconds of a token that each of some models writes, timed in turn on texts of their own.

    Raises RunError when llama.cpp fails.
    """

    def step(model: LlamaModel, text: list[int]) -> float:
        model.logits(text[:-1], 1)
        return _timed(lambda: model.logits(text, 1))

    works = {place: partial(step, model, text) for place, (model, text) in enumerate(zip(models, texts, strict=True))}
    return list(time_in_turn(works, looks=looks, limit=_LIMIT, always=len(works)).values())


def make_monotonic(passes: dict[int, float]) -> dict[int, float]:
    """A pass over more tokens never costs less: where it seemed to, something else was running."""
    rising, dearest = dict[int, float](), 0.0
    for size in sorted(passes):
        dearest = max(dearest, passes[size])
        rising[size] = dearest
    return rising


def _timed(work: Callable[[], object]) -> float:
    began = perf_counter()
    work()
    return perf_counter() - began
