"""Which of the installed models make a pair, and which of the pairs is likely to gain most. Pure."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from specollama.pairs.assumptions import ASSUMED_ACCEPTANCE, ASSUMED_ACCEPTANCE_OTHER_TOKENIZER
from specollama.spec_decode.cost_curve import CostCurve
from specollama.spec_decode.expected_speedup import best_round, constant_rate
from specollama.tools.doctor.model_families import family_of

MOST_PAIRS = 12
_SMALL_ENOUGH = 1 / 3  # of the target's size: a larger draft takes most of what it brings
_SHAPE = {1: 1.0, 2: 1.36, 3: 1.52, 4: 1.79, 6: 1.97, 8: 2.25, 12: 2.72, 16: 3.28, 32: 5.6}
"""A pass by its tokens, in target steps: measured on two CPU cores with a 16-bit model; a GPU's is flatter."""
_UNITS = {"K": 1e-6, "M": 1e-3, "B": 1.0, "T": 1e3}  # in billions


@dataclass(frozen=True, slots=True)
class InstalledModel:
    """A model on a server, by what tells a tokenizer apart at a glance. `size` in bytes, `billions` of parameters."""

    name: str
    endpoint: str
    url: str
    size: int
    billions: float | None
    tokenizer: tuple[object, ...]
    completes: bool = True  # it writes text, and can be speculated


@dataclass(frozen=True, slots=True)
class Suggestion:
    """A pair that can work. `speedup`: expected by the models' sizes alone."""

    target: InstalledModel
    draft: InstalledModel
    speedup: float
    tokenizers: str = "look the same"

    @property
    def name(self) -> str:
        """What it may be called in the configuration."""
        return re.sub(r"[^A-Za-z0-9._-]+", "-", self.target.name.removesuffix(":latest")).strip("-")


@dataclass(frozen=True, slots=True)
class PullSuggestion:
    """A draft that isn't installed. `better`: than that installed one; "" where there is none."""

    target: str
    draft: str
    same: bool
    url: str
    better: str = ""


def candidates(models: Sequence[InstalledModel]) -> list[Suggestion]:
    """Pairs of the same tokenizer, as far as a glance tells, the ones that gain most first."""
    usable = [model for model in models if model.completes]
    found = [
        make_suggestion(target, draft)
        for target in usable
        for draft in usable
        if draft.tokenizer == target.tokenizer and 0 < draft.size <= _SMALL_ENOUGH * target.size
    ]
    return sorted(found, key=lambda each: -each.speedup)[:MOST_PAIRS]


def make_suggestion(
    target: InstalledModel, draft: InstalledModel, *, same: bool = True, tokenizers: str = ""
) -> Suggestion:
    """The pair and its expected speedup: a decode step takes as long as reading the weights, so sizes predict it."""
    acceptance = constant_rate(ASSUMED_ACCEPTANCE if same else ASSUMED_ACCEPTANCE_OTHER_TOKENIZER)
    gained = best_round(CostCurve(dict(_SHAPE)), draft.size / target.size, acceptance).speedup
    return Suggestion(target, draft, gained, tokenizers or "look the same")


def suggest_pulls(models: Sequence[InstalledModel], pairs: Sequence[Suggestion]) -> Iterator[PullSuggestion]:
    """For each target of a known family that has no draft as small as the family's own."""
    there = {model.name.removesuffix(":latest") for model in models}
    for target in models:
        family = family_of(target.name, target.billions)
        if family is None or family.draft in there or not target.completes:
            continue
        drafts = [pair.draft for pair in pairs if pair.target == target]
        smallest = min(drafts, key=lambda draft: draft.size, default=None)
        if smallest is None or (smallest.billions or 0) > 2 * family.billions:
            yield PullSuggestion(target.name, family.draft, family.same, target.url, smallest.name if smallest else "")


def best_of_each(pairs: Sequence[Suggestion]) -> list[Suggestion]:
    """The first pair of each target."""
    found: dict[tuple[str, str], Suggestion] = {}
    for pair in pairs:
        found.setdefault((pair.target.name, pair.target.url), pair)
    return list(found.values())


def billions(parameter_size: str) -> float | None:
    """`494.03M` as 0.49; None for what isn't a size."""
    number = re.fullmatch(r"([\d.]+)\s*([KMBT])", parameter_size.strip().upper())
    return float(number[1]) * _UNITS[number[2]] if number else None
