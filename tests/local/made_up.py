"""A pair whose vocabularies and probabilities are written down, small enough that every reply can be written out.

Everything but the two models, the clock and the sources of randomness is the real route: planner, drafters, target,
acceptance, loop.
"""

from __future__ import annotations

import codecs
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from contextlib import aclosing
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from every_draw import Chance, EveryRandom, Uniform, law
from local_replies import settings

from specollama import opened as opened_module
from specollama.backends import costs, local, worker
from specollama.backends.llama import Logits
from specollama.backends.sampler import Sampler
from specollama.drafting import Drafting, Opened
from specollama.engine import rounds
from specollama.engine.rounds import Speculation
from specollama.opened import OpenedPair
from specollama.planner import LOOKUP
from specollama.stats import Done, Text
from specollama.types import DoneReason, Route, Rule, SamplingOptions

END = b"</s>"
PROMPT = "."
_NEVER = -1e4  # a logit that leaves nothing at any temperature
Follow = Mapping[int, Mapping[int, float]]
"""Probabilities of the next token by the last one, both by id; -1: after any other."""


class Vocabulary:
    """Tokens by their bytes. The longest piece is read first, and of twins the first."""

    def __init__(self, *pieces: bytes) -> None:
        self._pieces = pieces
        self._shown = ["" if piece == END else piece.decode(errors="ignore") for piece in pieces]
        times = Counter(self._shown)
        self.distinct = frozenset(
            text for text, piece in zip(self._shown, pieces, strict=True) if text.encode() == piece and times[text] == 1
        )
        self.ids = {text: token for token, text in enumerate(self._shown) if text in self.distinct}

    def __len__(self) -> int:
        return len(self._pieces)

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

    def within(self, text: str) -> list[int]:
        return list(self.encode(text))

    def tokens(self) -> list[str]:
        return self._shown

    def shown(self, token: int) -> str:
        return self._shown[token]

    def piece(self, token: int) -> bytes:
        return b"" if self.ends(token) else self._pieces[token]

    def whole(self, token: int) -> str:
        return self._shown[token] if self._shown[token].encode() == self._pieces[token] else ""

    def ends(self, token: int) -> bool:
        return self._pieces[token] == END

    def close(self) -> None: ...


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

    size: int
    follow: Follow
    clock: Clock
    cost: Callable[[int], float]
    context_length: int = 64
    _read: list[int] = field(default_factory=list)

    def known(self, tokens: list[int]) -> int:
        pairs = enumerate(zip(self._read, tokens, strict=False))
        return next((place for place, (ours, asked) in pairs if ours != asked), min(len(self._read), len(tokens)))

    def rows(self, tokens: list[int], count: int, stopped: Callable[[], bool]) -> list[Logits]:
        self.clock.now += self.cost(len(tokens) - min(self.known(tokens), len(tokens) - count))
        self._read = list(tokens)
        return [self._row(last) for last in tokens[len(tokens) - count :]]

    def _row(self, last: int) -> Logits:
        row = np.full(self.size, _NEVER, dtype=np.float32)
        for token, probability in self.follow.get(last, self.follow[-1]).items():
            row[token] = np.log(probability)
        return row

    def close(self) -> None: ...


@dataclass(frozen=True, slots=True)
class EveryDraw(Sampler):
    """A sampler whose noise takes every value: of each seed and position one number, however often it is asked for.

    The same number for draft and target gives each its own distribution, and mostly the same token.
    """

    chance: Chance = field(default_factory=Chance)
    noise: dict[tuple[int, int], Uniform] = field(default_factory=dict)

    def draw(self, logits: Logits, before: Sequence[int], position: int) -> int:
        tokens, probabilities = self.distribution(logits, before)
        number = self.noise.setdefault((self.seed, position), Uniform(self.chance))
        order = np.argsort(tokens)
        return int(tokens[order][number.place(probabilities[order].tolist())])


@dataclass
class Side:
    """One of the two models: its tokens, what follows what, and what a pass costs it."""

    vocabulary: Vocabulary
    follow: Follow
    cost: Callable[[int], float]


def pair(target: Side, draft: Side | None, clock: Clock, *, lookup: bool = False) -> OpenedPair:
    def opened(name: str, side: Side) -> Opened:
        passes = {size: side.cost(size) for size in (1, 2, 3, 4, 8)}
        model = Bigrams(len(side.vocabulary), side.follow, clock, side.cost)
        known = costs.ModelCosts(passes=passes, reading=0.0)
        opened = Opened(name, model, side.vocabulary, name, known, ((1,), 1))  # type: ignore[arg-type]
        opened.same = side.vocabulary is target.vocabulary
        return opened

    drafts = [opened("draft", draft)] if draft else []
    return OpenedPair(opened("", target), Drafting(drafts, lookup, Path("nowhere"), costs.Kept()), [])


async def said(speculation: Speculation) -> str:
    """The reply; "$" behind one that ended by itself."""
    text = ""
    async with aclosing(speculation.events()) as events:
        async for event in events:
            text += event.text if isinstance(event, Text) else ""
            if isinstance(event, Done):
                return text + "$" * (event.reason is DoneReason.STOP)
    raise AssertionError("a reply ends with Done")


async def law_of(
    target: Side,
    draft: Side | None,
    options: SamplingOptions,
    rule: Rule,
    lookahead: int | str | tuple[int, ...],
    *,
    lookup: bool = False,
    prompt: str = PROMPT,
    follow: float | None = None,
) -> dict[str, float]:
    """The probability of each reply of the pair. `follow`: what the planner first hopes of a next token."""

    async def experiment(chance: Chance) -> str:
        clock = Clock()
        with pytest.MonkeyPatch.context() as patch:
            _only_made_up(patch, chance, clock)
            chosen = settings(lookahead, rule)  # type: ignore[arg-type]
            speculation = pair(target, draft, clock, lookup=lookup).speculation(prompt, options, chosen)
            speculation.random = EveryRandom(chance)
            if follow is not None:
                for name, source in speculation.lookahead.sources.items():  # type: ignore[attr-defined]
                    source.follow = follow if name != LOOKUP else source.follow
            return await said(speculation)

    return await law(experiment)


def _only_made_up(patch: pytest.MonkeyPatch, chance: Chance, clock: Clock) -> None:
    """Randomness, time and threads out of the way of writing out thousands of replies."""

    async def at_once(work: Callable[[Callable[[], bool]], Any]) -> Any:
        return work(lambda: False)

    noise = dict[tuple[int, int], Uniform]()
    patch.setattr(opened_module, "Sampler", lambda options, seed: EveryDraw(options, seed, chance, noise))
    patch.setattr(worker, "do", at_once)
    patch.setattr(local, "perf_counter", clock.seconds)
    patch.setattr(rounds, "perf_counter_ns", clock.nanoseconds)


def exact(side: Side, options: SamplingOptions, prompt: str = PROMPT) -> dict[str, float]:
    """The law of the target alone, walked through token by token."""
    found, sampler = dict[str, float](), Sampler(options, 0)
    model = Bigrams(len(side.vocabulary), side.follow, Clock(), side.cost)
    start = list(side.vocabulary.encode(prompt))

    def text(tokens: list[int]) -> str:
        pieces = b"".join(map(side.vocabulary.piece, tokens))
        return codecs.getincrementaldecoder("utf-8")().decode(pieces)  # a character that isn't whole is left out

    def walk(tokens: list[int], probability: float) -> None:
        if len(tokens) == options.num_predict:
            found[text(tokens)] = found.get(text(tokens), 0) + probability
            return
        [row] = model.rows([*start, *tokens], 1, lambda: False)
        for token, share in zip(*sampler.distribution(row, [*start, *tokens]), strict=True):
            if share < 1e-9:
                continue
            if side.vocabulary.ends(int(token)):
                ended = text(tokens) + "$"
                found[ended] = found.get(ended, 0) + probability * float(share)
            else:
                walk([*tokens, int(token)], probability * float(share))

    walk([], 1.0)
    return found


def distance(ours: Mapping[str, float], theirs: Mapping[str, float]) -> float:
    """Total variation: the most by which the probability of any set of replies differs."""
    return sum(abs(ours.get(reply, 0) - theirs.get(reply, 0)) for reply in {*ours, *theirs}) / 2


__all__ = ["END", "PROMPT", "Clock", "Route", "Side", "Vocabulary", "distance", "exact", "law_of", "pair", "said"]
