"""A pair whose target is opened in process: its models, what is known of their speed, and the loop over them."""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from random import Random

from specollama.backends.drafter_pool import DraftModel
from specollama.backends.llama_cpp import model_thread, profiling
from specollama.backends.llama_cpp.draft_compatibility import first_difference
from specollama.backends.llama_cpp.gguf_metadata import refuse_unreadable
from specollama.backends.llama_cpp.model import LoadOptions
from specollama.backends.llama_cpp.sampler import Sampler
from specollama.backends.llama_cpp.target import LocalTarget, Written
from specollama.config.settings import PairSettings
from specollama.errors import UnsupportedPair
from specollama.pairs.drafters import Drafting, lookahead_of
from specollama.pairs.model_loading import Opened, Opening
from specollama.spec_decode.cost_curve import CostCurve
from specollama.spec_decode.decode_loop import Speculation
from specollama.spec_decode.metrics import Stats
from specollama.spec_decode.types import Route, Rule, SamplingOptions


@dataclass(slots=True)
class OpenedPair:
    """Close it with `close`, which keeps what was learnt about the drafters."""

    target: Opened
    drafting: Drafting
    notices: list[str]  # lines for the user, once
    alone: asyncio.Lock = field(default_factory=asyncio.Lock)  # held for the time of a reply: there is one context

    async def close(self) -> None:
        self.drafting.keep()
        await model_thread.do(self._free)

    def _free(self, stopped: Callable[[], bool]) -> None:
        for opened in (self.target, *self.drafts):
            opened.close()

    @property
    def drafts(self) -> list[Opened]:
        return self.drafting.drafts

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
        """Time all models once more; what comes of it is kept at the end.

        A copy that drafts is weighed anew against its file the next time: the two are compared only as they were timed
        beside each other.
        """
        await model_thread.do(lambda stopped: self._measure())
        kept = self.drafting.kept
        timed = {opened.key: opened.costs for opened in (self.target, *self.drafts)}
        copied = {opened.of_file for opened in self.drafts} - timed.keys()
        others = {key: known for key, known in kept.models.items() if key not in copied}
        self.drafting.kept = kept.model_copy(update={"models": {**others, **timed}})

    def _measure(self) -> None:
        for opened in (self.target, *self.drafts):
            opened.measure()

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
        curve = CostCurve(dict(self.target.costs.passes))
        planner = self.drafting.planner(curve, rule, sampling, others, written.tokens)
        drafting = bool(self.drafts or self.drafting.lookup or others)
        vocabulary = self.target.vocabulary
        target = LocalTarget(self.target.model, vocabulary, written, sampler, rule=rule, shown=shown)
        return Speculation(
            prompt=prompt,
            target=target,
            drafter=self.drafting.drafter(planner, sampler, written.tokens, vocabulary.whole, others),
            lookahead=lookahead_of(settings, planner, drafting=drafting),
            rule=rule,
            options=sampling,
            stats=Stats(route=Route.LOCAL, prompt_eval_count=written.prompt),
            random=Random(seed),
        )


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


async def open_pair(
    target: Path,
    drafts: Mapping[str, Path],
    options: LoadOptions,
    *,
    lookup: bool,
    requantize: bool = False,
    state: Path | None = None,
) -> OpenedPair:
    """Open the files, and time them if that wasn't done before on this machine.

    `requantize`: a draft model may be opened as a quicker copy (backends.llama_cpp.requantize). `state`: the folder
    that keeps what is learnt; None: the user's. Raises RunError when a file can't be opened, MissingPackage without
    llama-cpp-python.
    """
    return await model_thread.do(
        lambda stopped: _open_pair(target, drafts, options, lookup, requantize, state, stopped)
    )


def _open_pair(
    target: Path,
    drafts: Mapping[str, Path],
    options: LoadOptions,
    lookup: bool,
    requantize: bool,
    state: Path | None,
    stopped: Callable[[], bool],
) -> OpenedPair:
    for path in (target, *drafts.values()):
        refuse_unreadable(path)
    file = profiling.state_file(
        *(profiling.model_key(path, options) for path in (target, *drafts.values())), folder=state
    )
    kept, notice = profiling.recall(file)
    opening = Opening(options, requantize, dict(kept.models), [notice] if notice else [])
    with ExitStack() as undo:
        ours = opening.target(target)
        undo.callback(ours.close)
        models = opening.drafts(drafts, stopped)
        undo.pop_all()
    for model in models:
        model.same = first_difference(model.vocabulary.tokens(), ours.vocabulary.tokens()) is None
    known = kept.model_copy(update={"models": opening.measured})
    if known != kept and (line := profiling.keep(known, file)):
        opening.notices.append(line)
    return OpenedPair(ours, Drafting(models, lookup, file, known), opening.notices)
