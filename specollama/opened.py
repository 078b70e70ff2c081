"""A pair whose target is opened in process: its models, what is known of their speed, and the loop over them."""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field, replace
from pathlib import Path
from random import Random
from typing import Any

from specollama.backends import costs, requantized, worker
from specollama.backends.base import Drafter
from specollama.backends.facts import first_difference
from specollama.backends.llama import LlamaModel, LoadOptions
from specollama.backends.local import LocalDrafter, LocalTarget, Written
from specollama.backends.lookup import LookupDrafter
from specollama.backends.sampler import Sampler
from specollama.backends.sources import DraftModel, Sources
from specollama.backends.store import refuse_unreadable
from specollama.backends.vocabulary import LlamaVocabulary
from specollama.config import PairSettings
from specollama.engine.rounds import Speculation
from specollama.errors import RunError, UnsupportedPair
from specollama.lookahead import FixedLookahead, Lookahead
from specollama.planner import LOOKUP, REPLY, Calibration, CostCurve, Planner, Source
from specollama.stats import Stats
from specollama.types import Route, Rule, SamplingOptions

_CONTEXT = 4096  # tokens, where nobody says: Ollama's own default
_SAMPLE = "The ship left the harbour at dawn, and the keeper of the light wrote its name into the log, as every day."
_DRAFTING = (1,)  # tokens in a pass of a draft model
_DRAFTING_REPEATS = 8
_REQUANTIZED = "-requantized"  # in the keys of quicker copies


@dataclass(slots=True)
class Opened:
    """A model, its tokenizer and its costs. `same`: its tokens are the target's."""

    name: str
    model: LlamaModel
    vocabulary: LlamaVocabulary
    key: str
    costs: costs.ModelCosts
    same: bool = True

    @property
    def of_file(self) -> str:
        """The key of the file itself, where this is its quicker copy."""
        return self.key.removesuffix(_REQUANTIZED)

    def close(self) -> None:
        self.model.close()
        self.vocabulary.close()


@dataclass(slots=True)
class OpenedPair:
    """Close it with `close`, which keeps what was learnt about the drafters."""

    target: Opened
    drafts: list[Opened]
    lookup: bool
    file: Path  # where its costs and calibrations are kept
    kept: costs.Kept
    notices: list[str]  # lines for the user, once
    alone: asyncio.Lock = field(default_factory=asyncio.Lock)  # held for the time of a reply: there is one context
    _calibrations: dict[str, Calibration] = field(default_factory=dict)

    async def close(self) -> None:
        fared = {name: costs.Fared(hits=c.hits, trials=c.trials) for name, c in self._calibrations.items()}
        costs.keep(self.kept.model_copy(update={"drafters": {**self.kept.drafters, **fared}}), self.file)
        await worker.do(self._free)

    def _free(self, stopped: Callable[[], bool]) -> None:
        for opened in (self.target, *self.drafts):
            opened.close()

    @property
    def context_length(self) -> int:
        return self.target.model.context_length

    def told(self) -> tuple[str, ...]:
        """The notices that weren't told yet."""
        notices, self.notices = tuple(self.notices), []
        return notices

    def why_full(self, prompt: str) -> str:
        """Why the prompt leaves no room for a reply; "" when it does."""
        tokens = len(self.encode(prompt))
        full = tokens + 2 > self.context_length
        return f"the prompt of {tokens} tokens fills the context of {self.context_length}" if full else ""

    def encode(self, prompt: str) -> list[int]:
        return list(self.target.vocabulary.encode(prompt))

    async def measure_anew(self) -> None:
        """Time all models once more; what comes of it is kept at the end."""
        self.kept = await worker.do(lambda stopped: self._measured())

    def _measured(self) -> costs.Kept:
        for opened, sizes, repeats in (
            (self.target, costs.SIZES, costs.REPEATS),
            *((draft, _DRAFTING, _DRAFTING_REPEATS) for draft in self.drafts),
        ):
            opened.costs = costs.measure(opened.model, list(opened.vocabulary.encode(_SAMPLE)), sizes, repeats)
        models = {opened.key: opened.costs for opened in (self.target, *self.drafts)}
        return self.kept.model_copy(update={"models": {**self.kept.models, **models}})

    def speculation(
        self,
        prompt: str,
        sampling: SamplingOptions,
        settings: PairSettings,
        others: Sequence[DraftModel] = (),
        shown: int = 2,
    ) -> Speculation:
        """One reply. `others`: draft models that aren't opened here. `shown`: most probable tokens that are told."""
        rule = rule_of(settings.rule, sampling)
        seed = secrets.randbits(62) if sampling.seed is None else sampling.seed
        sampler, written = Sampler(sampling, seed), Written(self.encode(prompt))
        planner = self._planner(rule, sampling, others)
        lookahead = _lookahead(settings, planner, drafting=bool(self.drafts or self.lookup or others))
        target = LocalTarget(self.target.model, self.target.vocabulary, written, sampler, rule=rule, shown=shown)
        # By rejection a draft may not be drawn with the noise that the target's own sample comes from.
        drawing = replace(sampler, seed=secrets.randbits(62)) if rule is Rule.REJECTION else sampler
        return Speculation(
            prompt=prompt,
            target=target,
            drafter=self._drafter(planner, written, drawing, rule, others),
            lookahead=lookahead,
            rule=rule,
            options=sampling,
            stats=Stats(route=Route.LOCAL, prompt_eval_count=written.prompt),
            random=Random(seed),
        )

    def _planner(self, rule: Rule, sampling: SamplingOptions, others: Sequence[DraftModel]) -> Planner:
        def calibration(name: str) -> Calibration:
            key = f"{rule} {sampling.temperature:g} {name}"
            if key not in self._calibrations:
                known = self.kept.drafters.get(key)
                self._calibrations[key] = Calibration(list(known.hits), list(known.trials)) if known else Calibration()
            return self._calibrations[key]

        sources = {LOOKUP: Source(calibration=calibration(LOOKUP))}
        for draft in self.drafts:
            sources[draft.name] = Source(draft.costs.passes[1], draft.costs.reading, calibration(draft.name))
        for other in others:
            sources[other.name] = Source(calibration=calibration(other.name))
        curve = CostCurve(dict(self.target.costs.passes))
        expected = sampling.num_predict if sampling.num_predict > 0 else REPLY
        return Planner(curve, sources, rule, expected)

    def _drafter(
        self, planner: Planner, written: Written, sampler: Sampler, rule: Rule, others: Sequence[DraftModel]
    ) -> Drafter:
        vocabulary = self.target.vocabulary
        models = [
            LocalDrafter(
                draft.model,
                draft.vocabulary,
                _tokens(draft, written),
                sampler,
                planner,
                name=draft.name,
                rule=rule,
                prompt=written.prompt,
                same=draft.same,
            )
            for draft in self.drafts
        ]
        lookup = LookupDrafter(lambda text: written.tokens, vocabulary.whole) if self.lookup else None
        return Sources(lookup, [*models, *others], planner)


def _tokens(draft: Opened, written: Written) -> Any:
    if draft.same:
        return lambda text: written.tokens
    return lambda text: list(draft.vocabulary.encode(text))


def _lookahead(settings: PairSettings, planner: Planner, *, drafting: bool) -> Lookahead:
    if settings.route is Route.PLAIN or settings.lookahead == 0 or not drafting:
        return FixedLookahead(0)
    if settings.lookahead == "auto":
        return planner
    planner.forced = (settings.lookahead,) if isinstance(settings.lookahead, int) else settings.lookahead
    return planner


def rule_of(asked: Rule, sampling: SamplingOptions) -> Rule:
    """Greedy at temperature 0; else match, draft and target drawing with the same noise, unless asked otherwise.

    Raises UnsupportedPair when rejection was asked for and a seed, too: the reply would depend on the draft.
    """
    if sampling.greedy:
        return Rule.GREEDY
    if asked is Rule.REJECTION and sampling.seed is not None:
        raise UnsupportedPair(
            "rule rejection depends on the draft, and a seed asks for a reply that doesn't; use `match`"
        )
    return Rule.REJECTION if asked is Rule.REJECTION else Rule.MATCH


def load_options(options: Mapping[str, Any], settings: PairSettings) -> LoadOptions:
    """How to open the models, by Ollama's options and the pair's own."""
    layers = options.get("num_gpu")
    return LoadOptions(
        context_length=options.get("num_ctx") or _CONTEXT,
        threads=options.get("num_thread") or None,
        batch_threads=settings.batch_threads,
        gpu_layers=-1 if layers is None else layers,
        kv_type=settings.kv_type or "f16",
        mmap=options.get("use_mmap") is not False,
    )


async def open_pair(
    target: Path, drafts: Mapping[str, Path], options: LoadOptions, *, lookup: bool, requantize: bool = False
) -> OpenedPair:
    """Open the files, and time them if that wasn't done before on this machine.

    `requantize`: a draft model may be opened as a quicker copy (backends.requantized). Raises RunError when a file
    can't be opened, MissingPackage without llama-cpp-python.
    """
    return await worker.do(lambda stopped: _open_pair(target, drafts, options, lookup, requantize))


def _open_pair(
    target: Path, drafts: Mapping[str, Path], options: LoadOptions, lookup: bool, requantize: bool
) -> OpenedPair:
    for path in (target, *drafts.values()):
        refuse_unreadable(path)
    file = costs.state_file(*(costs.model_key(path, options) for path in (target, *drafts.values())))
    kept, notice = costs.recall(file)
    opening = _Opening(options, requantize, dict(kept.models), [notice] if notice else [])
    with ExitStack() as undo:
        ours = opening.target(target)
        undo.callback(ours.close)
        models = list[Opened]()
        for name, path in drafts.items():
            models.append(opening.draft(name, path))
            undo.callback(models[-1].close)
        undo.pop_all()
    for model in models:
        model.same = first_difference(model.vocabulary.tokens(), ours.vocabulary.tokens()) is None
    known = costs.Kept(models=opening.measured, drafters=kept.drafters)
    if known != kept and (line := costs.keep(known, file)):
        opening.notices.append(line)
    return OpenedPair(ours, models, lookup, file, known, opening.notices)


@dataclass(slots=True)
class _Opening:
    """Opens models and times those that weren't yet; a draft model as what is quickest."""

    options: LoadOptions
    requantize: bool
    measured: dict[str, costs.ModelCosts]  # by key
    notices: list[str]

    def target(self, path: Path) -> Opened:
        return self._opened("", path, costs.model_key(path, self.options), costs.SIZES, costs.REPEATS)

    def draft(self, name: str, path: Path) -> Opened:
        copy, (key, copied) = requantized.place(path), self._keys(path)
        if self.requantize and self._quicker(key, copied) and copy.exists():
            return self._drafting(name, copy, copied)
        draft = self._drafting(name, path, key)
        tried = copied in self.measured and not self._quicker(key, copied)
        if not self.requantize or tried or not requantized.may_help(draft.model, self.options):
            return draft
        try:
            return self._quickest(draft, copy, copied)
        except RunError as error:
            self.notices.append(f"no quicker copy of {name}: {error} (`requantize = false` in the pair asks for none)")
            return draft

    def _keys(self, path: Path) -> tuple[str, str]:
        key = costs.model_key(path, self.options)
        return key, f"{key}{_REQUANTIZED}"

    def _quicker(self, key: str, copied: str) -> bool:
        if key not in self.measured or copied not in self.measured:
            return False
        return self.measured[copied].passes[1] < requantized.QUICKER * self.measured[key].passes[1]

    def _quickest(self, draft: Opened, copy: Path, copied: str) -> Opened:
        """The draft model or its copy. Raises RunError when the copy can't be made or opened."""
        if not copy.exists():
            requantized.make(draft.model.path, copy)
        other = self._drafting(draft.name, copy, copied)
        if not self._quicker(draft.key, copied):
            other.close()
            copy.unlink(missing_ok=True)
            return draft
        draft.close()
        times = draft.costs.passes[1] / other.costs.passes[1]
        self.notices.append(
            f"{draft.name} drafts {times:.1f} times as fast from a copy in 4 bits, kept in {copy.parent}"
        )
        return other

    def _drafting(self, name: str, path: Path, key: str) -> Opened:
        return self._opened(name, path, key, _DRAFTING, _DRAFTING_REPEATS)

    def _opened(self, name: str, path: Path, key: str, sizes: Sequence[int], repeats: int) -> Opened:
        model = LlamaModel(path, self.options)
        try:
            vocabulary = LlamaVocabulary(path)
            known = self.measured.get(key)
            if known is None or len(known.passes) < min(2, len(sizes)):  # one size is no curve
                self.measured[key] = costs.measure(model, list(vocabulary.encode(_SAMPLE)), sizes, repeats)
        except RunError:
            model.close()
            raise
        return Opened(name, model, vocabulary, key, self.measured[key])
