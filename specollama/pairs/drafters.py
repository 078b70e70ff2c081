"""What a pair drafts with, whatever its target: models opened in process, prompt lookup, and how they fared."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path

from specollama.backends.drafter_pool import DraftModel, Sources
from specollama.backends.llama_cpp import profiling
from specollama.backends.llama_cpp.drafter import LocalDrafter
from specollama.backends.llama_cpp.sampler import Sampler
from specollama.backends.prompt_lookup import LookupDrafter
from specollama.config.settings import PairSettings
from specollama.pairs.model_loading import Opened
from specollama.spec_decode.calibration import LOOKUP, Calibration, Source
from specollama.spec_decode.cost_curve import CostCurve
from specollama.spec_decode.lookahead import FixedLookahead, Lookahead
from specollama.spec_decode.planner import Planner
from specollama.spec_decode.reply_length import Learnt, ReplyLengths
from specollama.spec_decode.types import Route, Rule, SamplingOptions


@dataclass(slots=True)
class Drafting:
    """The drafters of a pair. `file`: where its costs, its calibrations and the lengths of its replies are kept."""

    drafts: list[Opened]
    lookup: bool
    file: Path
    kept: profiling.Kept
    _calibrations: dict[str, Calibration] = field(default_factory=dict)
    _lengths: Learnt = field(init=False)

    def __post_init__(self) -> None:
        kept = self.kept.lengths
        self._lengths = Learnt({kind: ReplyLengths(list(k.lived), list(k.ended)) for kind, k in kept.items()})

    def keep(self) -> None:
        """Write down what was learnt."""
        fared = {name: profiling.Fared.model_validate(asdict(each)) for name, each in self._calibrations.items()}
        lengths = {kind: profiling.Lengths(lived=k.lived, ended=k.ended) for kind, k in self._lengths.kinds.items()}
        learnt = {"drafters": {**self.kept.drafters, **fared}, "lengths": lengths}
        profiling.keep(self.kept.model_copy(update=learnt), self.file)

    def planner(
        self,
        curve: CostCurve,
        rule: Rule,
        sampling: SamplingOptions,
        others: Sequence[DraftModel],
        prompt: Sequence[int],
    ) -> Planner:
        """For one reply. `others`: draft models that aren't opened here; `prompt`: its tokens."""

        def calibration(name: str) -> Calibration:
            key = f"{rule} {sampling.temperature:g} {name}"
            if key not in self._calibrations:
                known = self.kept.drafters.get(key)
                self._calibrations[key] = Calibration(**known.model_dump()) if known else Calibration()
            return self._calibrations[key]

        sources = {LOOKUP: Source(calibration=calibration(LOOKUP))}
        for draft in self.drafts:
            sources[draft.name] = Source(draft.costs.passes[1], draft.costs.reading, calibration(draft.name))
        for other in others:
            sources[other.name] = Source(calibration=calibration(other.name))
        limit = sampling.num_predict if sampling.num_predict > 0 else None
        return Planner(curve, sources, rule, self._lengths.of(prompt), limit)

    def drafter(
        self,
        planner: Planner,
        sampler: Sampler,
        tokens: list[int],
        whole: Callable[[int], str],
        others: Sequence[DraftModel],
    ) -> Sources:
        """For one reply. `tokens`: of all its text, to which the target adds; `whole` gives the text of one of them."""
        models = [
            LocalDrafter(
                draft.model,
                draft.vocabulary,
                _tokens(draft, tokens),
                sampler,
                planner,
                name=draft.name,
                rule=planner.rule,
                prompt=len(tokens),
                same=draft.same,
            )
            for draft in self.drafts
        ]
        lookup = LookupDrafter(lambda text: tokens, whole) if self.lookup else None
        return Sources(lookup, [*models, *others], planner)


def _tokens(draft: Opened, tokens: list[int]) -> Callable[[str], list[int]]:
    if draft.same:
        return lambda text: tokens
    return lambda text: list(draft.vocabulary.encode(text))


def lookahead_of(settings: PairSettings, planner: Planner, *, drafting: bool) -> Lookahead:
    """The planner, or what the settings ask for in its place."""
    if settings.route is Route.PLAIN or settings.lookahead == 0 or not drafting:
        return FixedLookahead(0)
    if settings.lookahead == "auto":
        return planner
    lengths = (settings.lookahead,) if isinstance(settings.lookahead, int) else settings.lookahead
    planner.forced = tuple(min(length, planner.most) for length in lengths)
    return planner
