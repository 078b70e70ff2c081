"""Drafters of a pair: loaded models, prompt lookup, and their acceptance history."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path

from specollama.backends.drafter_pool import DrafterPool, DraftModel
from specollama.backends.llama_cpp import profiling
from specollama.backends.llama_cpp.drafter import LocalDrafter
from specollama.backends.llama_cpp.sampler import Sampler
from specollama.backends.prompt_lookup import LookupDrafter
from specollama.pairs.model_loading import LoadedModel
from specollama.spec_decode.calibration import PROMPT_LOOKUP, Calibration, DrafterStats
from specollama.spec_decode.cost_curve import CostCurve
from specollama.spec_decode.planner import Planner
from specollama.spec_decode.reply_length import LengthsByRequest, ReplyLengths
from specollama.spec_decode.types import AcceptanceMethod, SamplingOptions


@dataclass(slots=True)
class DrafterSet:
    """The drafters of a pair. `file`: where timings, calibrations and reply lengths are saved."""

    drafts: list[LoadedModel]
    lookup: bool
    file: Path
    profile: profiling.SavedProfile
    _calibrations: dict[str, Calibration] = field(default_factory=dict)
    _lengths: LengthsByRequest = field(init=False)

    def __post_init__(self) -> None:
        lengths = self.profile.lengths
        self._lengths = LengthsByRequest(
            {kind: ReplyLengths(list(k.lived), list(k.ended)) for kind, k in lengths.items()}
        )

    def save(self) -> None:
        """Save costs, calibration and reply lengths."""
        calibrations = {
            name: profiling.CalibrationCounts.model_validate(asdict(each)) for name, each in self._calibrations.items()
        }
        lengths = {
            kind: profiling.ReplyLengthCounts(lived=k.lived, ended=k.ended) for kind, k in self._lengths.kinds.items()
        }
        update = {"drafters": {**self.profile.drafters, **calibrations}, "lengths": lengths}
        profiling.save(self.profile.model_copy(update=update), self.file)

    def make_planner(
        self,
        curve: CostCurve,
        rule: AcceptanceMethod,
        sampling: SamplingOptions,
        others: Sequence[DraftModel],
        prompt: Sequence[int],
    ) -> Planner:
        """The planner of one reply. `others`: draft models that servers run; `prompt`: the prompt's token ids."""

        def calibration(name: str) -> Calibration:
            key = f"{rule} {sampling.temperature:g} {name}"
            if key not in self._calibrations:
                known = self.profile.drafters.get(key)
                self._calibrations[key] = Calibration(**known.model_dump()) if known else Calibration()
            return self._calibrations[key]

        sources = {PROMPT_LOOKUP: DrafterStats(calibration=calibration(PROMPT_LOOKUP))}
        for draft in self.drafts:
            sources[draft.name] = DrafterStats(draft.costs.passes[1], draft.costs.reading, calibration(draft.name))
        for other in others:
            sources[other.name] = DrafterStats(calibration=calibration(other.name))
        limit = sampling.num_predict if sampling.num_predict > 0 else None
        return Planner(curve, sources, rule, self._lengths.for_prompt(prompt), limit)

    def make_drafter(
        self,
        planner: Planner,
        sampler: Sampler,
        tokens: list[int],
        token_text: Callable[[int], str],
        others: Sequence[DraftModel],
        notify: Callable[[str], None],
    ) -> DrafterPool:
        """The drafter of one reply. `tokens`: ids so far, which the target extends; `token_text`: the text of an id.

        `notify` is called with a notice about a model that fails.
        """
        models = [
            LocalDrafter(
                draft.model,
                draft.vocabulary,
                _tokens(draft, tokens),
                sampler,
                planner,
                name=draft.name,
                rule=planner.rule,
                prompt_tokens=len(tokens),
                shares_tokenizer=draft.shares_tokenizer,
            )
            for draft in self.drafts
        ]
        lookup = LookupDrafter(lambda text: tokens, token_text) if self.lookup else None
        return DrafterPool(lookup, [*models, *others], planner, notify)


def _tokens(draft: LoadedModel, tokens: list[int]) -> Callable[[str], list[int]]:
    if draft.shares_tokenizer:
        return lambda text: tokens
    return lambda text: list(draft.vocabulary.encode(text))
