"""A pair whose vocabularies and probabilities are written down, small enough that every reply can be written out.

Everything but the two models, the clock and the sources of randomness is the real route: planner, drafters, target,
acceptance, loop.
"""

from __future__ import annotations

import codecs
from collections import Counter
from collections.abc import AsyncGenerator, Callable, Hashable, Mapping, Sequence
from contextlib import aclosing
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from specollama.backends.llama_cpp import drafter as local
from specollama.backends.llama_cpp import model_thread, profiling
from specollama.backends.llama_cpp.model import Logits
from specollama.backends.llama_cpp.sampler import Sampler
from specollama.config.settings import FileRef, PairSettings
from specollama.pairs.drafters import DrafterSet
from specollama.pairs.model_loading import LoadedModel
from specollama.pairs.routes import local_models
from specollama.pairs.routes.local_models import LocalModels
from specollama.spec_decode import decode_loop
from specollama.spec_decode.calibration import CONFIDENCE_BINS, Calibration
from specollama.spec_decode.events import Done, Event, Text
from specollama.spec_decode.types import AcceptanceMethod, DoneReason, Route, SamplingOptions
from tests.support.every_draw import Chance, EveryRandom, Uniform, law

END = "</s>"
PROMPT = "."
_NEVER = -1e4  # a logit that leaves nothing at any temperature
Name = str | bytes
"""A token: its text, or the bytes of a part of a character. "a'" is a twin of "a": another token of the same text."""

Follow = Mapping[Name, Mapping[Name, float]]
"""Probabilities of the next token by the last one; "": after any other."""


class Vocabulary:
    """Tokens by their bytes. The longest piece is read first, and of twins the first."""

    def __init__(self, *names: Name) -> None:
        self.names = names
        self._pieces = [name if isinstance(name, bytes) else name.rstrip("'").encode() for name in names]
        self._shown = ["" if self.is_end(token) else _shown(piece) for token, piece in enumerate(self._pieces)]
        times = Counter(self._shown)
        whole = (self.token_text(token) for token in range(len(names)))
        self.unambiguous_texts = frozenset(text for text in whole if text and times[text] == 1)
        self.id_by_text = {text: token for token, text in enumerate(self._shown) if text in self.unambiguous_texts}

    def __len__(self) -> int:
        return len(self.names)

    def encode(self, text: str) -> tuple[int, ...]:
        raw, tokens, place = text.encode(), list[int](), 0
        while place < len(raw):
            token = max(
                (token for token, piece in enumerate(self._pieces) if raw.startswith(piece, place)),
                key=lambda token: (len(self._pieces[token]), -token),
            )
            tokens.append(token)
            place += len(self._pieces[token])
        return tuple(tokens)

    def encode_continuation(self, text: str) -> list[int]:
        return list(self.encode(text))

    def encode_fragment(self, text: str) -> list[int]:
        return list(self.encode(text))

    def all_texts(self) -> list[str]:
        return self._shown

    def display_text(self, token: int) -> str:
        return self._shown[token]

    def token_bytes(self, token: int) -> bytes:
        return b"" if self.is_end(token) else self._pieces[token]

    def token_text(self, token: int) -> str:
        return self._shown[token] if self._shown[token].encode() == self._pieces[token] else ""

    def is_end(self, token: int) -> bool:
        return self.names[token] == END

    def close(self) -> None: ...


def _shown(piece: bytes) -> str:
    """The characters that are whole at the beginning of a piece."""
    return piece.decode(errors="ignore")


@dataclass
class Clock:
    """Seconds, which only passes of the models take."""

    now: float = 0.0

    def seconds(self) -> float:
        return self.now

    def nanoseconds(self) -> int:
        return round(self.now * 1e9)


@dataclass
class Bigrams:
    """A model in which the next token depends on the last alone. `cost`: seconds of a pass by its tokens."""

    names: Sequence[Name]
    follow: Follow
    clock: Clock
    cost: Callable[[int], float]
    context_length: int = 64
    _read: list[int] = field(default_factory=list)

    def cached_tokens(self, tokens: list[int]) -> int:
        pairs = enumerate(zip(self._read, tokens, strict=False))
        return next((place for place, (ours, asked) in pairs if ours != asked), min(len(self._read), len(tokens)))

    def logits(self, tokens: list[int], count: int, stopped: Callable[[], bool]) -> list[Logits]:
        self.clock.now += self.cost(len(tokens) - min(self.cached_tokens(tokens), len(tokens) - count))
        self._read = list(tokens)
        return [self._row(last) for last in tokens[len(tokens) - count :]]

    def _row(self, last: int) -> Logits:
        row = np.full(len(self.names), _NEVER, dtype=np.float32)
        for name, probability in self.follow.get(self.names[last], self.follow[""]).items():
            row[self.names.index(name)] = np.log(probability)
        return row

    def close(self) -> None: ...


@dataclass(frozen=True, slots=True)
class EveryDraw(Sampler):
    """A sampler whose noise takes every value: of each seed and position one number, however often it is asked for.

    The same number for draft and target gives each its own distribution, and mostly the same token.
    """

    chance: Chance = field(default_factory=Chance)
    noise: dict[tuple[int, int], Uniform] = field(default_factory=dict)
    known: dict[Hashable, tuple[Any, Any]] = field(default_factory=dict)
    """The distributions computed so far, which thousands of replies ask for again."""

    def distribution(self, logits: Logits, before: Sequence[int]) -> tuple[Any, Any]:
        asked = (self.options, logits.tobytes(), tuple(before))
        if asked not in self.known:
            self.known[asked] = super(EveryDraw, self).distribution(logits, before)
        return self.known[asked]

    def draw(self, logits: Logits, before: Sequence[int], position: int) -> int:
        tokens, probabilities = self.distribution(logits, before)
        number = self.noise.setdefault((self.seed, position), Uniform(self.chance))
        order = np.argsort(tokens)
        return int(tokens[order][number.place(probabilities[order].tolist())])


Lookahead = int | tuple[int, ...] | str


def settings(lookahead: Lookahead, rule: AcceptanceMethod) -> PairSettings:
    route = Route.PLAIN if lookahead == 0 else Route.LOCAL
    return PairSettings(None, FileRef(Path("target.gguf")), (), lookahead=lookahead, rule=rule, route=route)  # type: ignore[arg-type]


@dataclass
class Side:
    """One of the two models: its tokens, what follows what, and what a pass costs it."""

    vocabulary: Vocabulary
    follow: Follow
    cost: Callable[[int], float]


def pair(target: Side, draft: Side | None, clock: Clock, *, lookup: bool = False) -> LocalModels:
    def opened(name: str, side: Side) -> LoadedModel:
        passes = {size: side.cost(size) for size in (1, 2, 3, 4, 8)}
        model = Bigrams(side.vocabulary.names, side.follow, clock, side.cost)
        known = profiling.ModelProfile(passes=passes, reading=0.0)
        opened = LoadedModel(name, model, side.vocabulary, name, known, ((1,), 1))  # type: ignore[arg-type]
        opened.shares_tokenizer = side.vocabulary is target.vocabulary
        return opened

    drafts = [opened("draft", draft)] if draft else []
    return LocalModels(opened("", target), DrafterSet(drafts, lookup, Path("nowhere"), profiling.SavedProfile()), [])


async def said(events: AsyncGenerator[Event, None]) -> str:
    """The reply; "$" behind one that ended by itself."""
    text = ""
    async with aclosing(events) as told:
        async for event in told:
            text += event.text if isinstance(event, Text) else ""
            if isinstance(event, Done):
                return text + "$" * (event.reason is DoneReason.STOP)
    raise AssertionError("a reply ends with Done")


def calibrate(planner: Any, acceptance: float) -> None:
    """As if each drafter had been tested a hundred times at each confidence."""
    bins = [100.0] * CONFIDENCE_BINS
    known = Calibration(hits=[acceptance * trials for trials in bins], trials=bins)
    for name, stats in planner.drafters.items():
        planner.drafters[name] = replace(stats, calibration=known)


async def law_of(
    target: Side,
    draft: Side | None,
    options: SamplingOptions,
    rule: AcceptanceMethod,
    lookahead: Lookahead,
    *,
    lookup: bool = False,
    prompt: str = PROMPT,
    acceptance: float | None = None,
) -> dict[str, float]:
    """The probability of each reply of the pair. `acceptance`: the rate that the planner knows the model for."""

    known = dict[Hashable, tuple[Any, Any]]()

    async def experiment(chance: Chance) -> str:
        clock = Clock()
        with pytest.MonkeyPatch.context() as patch:
            only_made_up(patch, chance, clock, known)
            opened = pair(target, draft, clock, lookup=lookup)
            speculation = opened.make_decoder(prompt, options, settings(lookahead, rule))
            speculation.random = EveryRandom(chance)
            if acceptance is not None:
                calibrate(speculation.lookahead, acceptance)
            return await said(speculation.events())

    return await law(experiment)


async def replies_by_seed(
    target: Side, draft: Side, options: SamplingOptions, lookahead: Lookahead | None, seeds: Sequence[int]
) -> list[str]:
    """Replies by match, each with its seed and the real noise. `lookahead` None: the target's plain stream."""
    found = list[str]()
    for seed in seeds:
        clock = Clock()
        with pytest.MonkeyPatch.context() as patch:
            _without_time(patch, clock)
            opened, asked = pair(target, draft, clock), replace(options, seed=seed)
            speculation = opened.make_decoder(PROMPT, asked, settings(lookahead or 0, AcceptanceMethod.MATCH))
            found.append(await said(speculation.plain_events("a test") if lookahead is None else speculation.events()))
    return found


def only_made_up(
    patch: pytest.MonkeyPatch, chance: Chance, clock: Clock, known: dict[Hashable, tuple[Any, Any]]
) -> None:
    """Randomness takes every value; no clock, and no thread, that would make thousands of replies take long.

    `known`: the distributions that earlier replies have computed.
    """
    noise = dict[tuple[int, int], Uniform]()
    patch.setattr(local_models, "Sampler", lambda options, seed: EveryDraw(options, seed, chance, noise, known))
    _without_time(patch, clock)


def _without_time(patch: pytest.MonkeyPatch, clock: Clock) -> None:
    async def at_once(work: Callable[[Callable[[], bool]], Any]) -> Any:
        return work(lambda: False)

    patch.setattr(model_thread, "run_on_model_thread", at_once)
    patch.setattr(local, "perf_counter", clock.seconds)
    patch.setattr(decode_loop, "perf_counter_ns", clock.nanoseconds)


def exact(side: Side, options: SamplingOptions, prompt: str = PROMPT) -> dict[str, float]:
    """The law of the target alone, walked through token by token."""
    found, sampler = dict[str, float](), Sampler(options, 0)
    model = Bigrams(side.vocabulary.names, side.follow, Clock(), side.cost)
    start = list(side.vocabulary.encode(prompt))

    def text(tokens: list[int]) -> str:
        pieces = b"".join(map(side.vocabulary.token_bytes, tokens))
        return codecs.getincrementaldecoder("utf-8")().decode(pieces)  # a character that isn't whole is left out

    def walk(tokens: list[int], probability: float) -> None:
        if len(tokens) == options.num_predict:
            found[text(tokens)] = found.get(text(tokens), 0) + probability
            return
        [row] = model.logits([*start, *tokens], 1, lambda: False)
        for token, share in zip(*sampler.distribution(row, [*start, *tokens]), strict=True):
            if share < 1e-9:
                continue
            if side.vocabulary.is_end(int(token)):
                ended = text(tokens) + "$"
                found[ended] = found.get(ended, 0) + probability * float(share)
            else:
                walk([*tokens, int(token)], probability * float(share))

    walk([], 1.0)
    return found


def distance(ours: Mapping[str, float], theirs: Mapping[str, float]) -> float:
    """Total variation: the most by which the probability of any set of replies differs."""
    return sum(abs(ours.get(reply, 0) - theirs.get(reply, 0)) for reply in {*ours, *theirs}) / 2
