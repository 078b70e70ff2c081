"""Models of the route `local`: loaded target and drafts, their timings, and the decoder built from them."""

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
from specollama.backends.llama_cpp.target import LocalTarget, TokenSequence
from specollama.config.settings import PairSettings
from specollama.pairs.decoding import choose_acceptance_method, lookahead_for
from specollama.pairs.drafters import DrafterSet
from specollama.pairs.feasibility import why_context_is_full
from specollama.pairs.model_loading import LoadedModel, ModelLoader, readable_drafts
from specollama.spec_decode.cost_curve import CostCurve
from specollama.spec_decode.decode_loop import SpeculativeDecoder
from specollama.spec_decode.metrics import Stats
from specollama.spec_decode.types import Route, SamplingOptions


@dataclass(slots=True)
class LocalModels:
    """Close it with `close`, which saves calibration and reply lengths."""

    target: LoadedModel
    drafters: DrafterSet
    notices: list[str]  # lines for the user, once
    reply_lock: asyncio.Lock = field(default_factory=asyncio.Lock)  # held during a reply: the model has one context

    async def close(self) -> None:
        self.drafters.save()
        await model_thread.run_on_model_thread(self._free)

    def _free(self, stopped: Callable[[], bool]) -> None:
        for opened in (self.target, *self.drafts):
            opened.close()

    @property
    def drafts(self) -> list[LoadedModel]:
        return self.drafters.drafts

    @property
    def size(self) -> int:
        """Bytes of the models' files."""
        return sum(opened.model.path.stat().st_size for opened in (self.target, *self.drafts))

    @property
    def context_length(self) -> int:
        return self.target.model.context_length

    def pop_notices(self) -> tuple[str, ...]:
        """Return the notices that weren't shown yet."""
        notices, self.notices = tuple(self.notices), []
        return notices

    def why_full(self, prompt: str) -> str | None:
        """Why the prompt leaves no room for a reply; None if it does."""
        return why_context_is_full(len(self.encode(prompt)), self.context_length)

    def encode(self, prompt: str) -> list[int]:
        return list(self.target.vocabulary.encode(prompt))

    async def remeasure(self) -> None:
        """Time all models again. `close` saves the result.

        A quantized copy is compared with its file again at the next start, because only timings taken in turn are
        comparable.
        """
        await model_thread.run_on_model_thread(lambda stopped: self._measure())
        profile = self.drafters.profile
        timed = {opened.key: opened.costs for opened in (self.target, *self.drafts)}
        copied = {opened.original_key for opened in self.drafts} - timed.keys()
        others = {key: known for key, known in profile.models.items() if key not in copied}
        self.drafters.profile = profile.model_copy(update={"models": {**others, **timed}})

    def _measure(self) -> None:
        for opened in (self.target, *self.drafts):
            opened.measure()

    def make_decoder(
        self,
        prompt: str,
        sampling: SamplingOptions,
        settings: PairSettings,
        others: Sequence[DraftModel] = (),
        shown: int = 2,
    ) -> SpeculativeDecoder:
        """The decoder of one reply. `others`: draft models on servers; `shown`: most probable tokens in a row."""
        seeded = "the reply depends on the draft, and a seed asks for one that doesn't"
        rule = choose_acceptance_method(settings.rule, sampling, None if sampling.seed is None else seeded)
        seed = secrets.randbits(62) if sampling.seed is None else sampling.seed
        sampler, written = Sampler(sampling, seed), TokenSequence(self.encode(prompt))
        curve = CostCurve(dict(self.target.costs.passes))
        planner = self.drafters.make_planner(curve, rule, sampling, others, written.tokens)
        can_draft = bool(self.drafts or self.drafters.lookup or others)
        vocabulary = self.target.vocabulary
        target = LocalTarget(self.target.model, vocabulary, written, sampler, rule=rule, top_count=shown)
        stats = Stats(route=Route.LOCAL, prompt_eval_count=written.prompt_tokens)
        return SpeculativeDecoder(
            prompt=prompt,
            target=target,
            drafter=self.drafters.make_drafter(
                planner, sampler, written.tokens, vocabulary.token_text, others, stats.notices.append
            ),
            lookahead=lookahead_for(settings, planner=planner, can_draft=can_draft),
            rule=rule,
            options=sampling,
            stats=stats,
            random=Random(seed),
        )


async def load_models(
    target: Path,
    drafts: Mapping[str, Path],
    options: LoadOptions,
    *,
    lookup: bool,
    requantize: bool = False,
    state: Path | None = None,
) -> LocalModels:
    """Open the files, and time them if that wasn't done before on this machine.

    `requantize`: a draft model may be opened as a quicker copy (backends.llama_cpp.requantize). `state`: the folder
    for saved timings and calibration; None: the user's. A draft model that can't be opened is left out, with a notice.
    Raises RunError when the target can't be opened, MissingPackage without llama-cpp-python.
    """
    return await model_thread.run_on_model_thread(
        lambda stopped: _load_models(target, drafts, options, lookup, requantize, state, stopped)
    )


def _load_models(
    target: Path,
    drafts: Mapping[str, Path],
    options: LoadOptions,
    lookup: bool,
    requantize: bool,
    state: Path | None,
    stopped: Callable[[], bool],
) -> LocalModels:
    refuse_unreadable(target)
    drafts, left_out = readable_drafts(drafts)
    file = profiling.profile_file(
        *(profiling.model_key(path, options) for path in (target, *drafts.values())), folder=state
    )
    saved, notice = profiling.load(file)
    opening = ModelLoader(options, requantize, dict(saved.models), [*left_out, *([notice] if notice else [])])
    with ExitStack() as undo:
        ours = opening.load_target(target)
        undo.callback(ours.close)
        models = opening.load_drafts(drafts, stopped)
        undo.pop_all()
    for model in models:
        model.shares_tokenizer = first_difference(model.vocabulary.all_texts(), ours.vocabulary.all_texts()) is None
    known = saved.model_copy(update={"models": opening.profiles})
    if known != saved and (line := profiling.save(known, file)):
        opening.notices.append(line)
    return LocalModels(ours, DrafterSet(models, lookup, file, known), opening.notices)
