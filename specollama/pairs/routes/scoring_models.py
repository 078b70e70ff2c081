"""An engine and what drafts for it: the models, what both cost, and the drafter and planner of one reply."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from contextlib import AbstractAsyncContextManager, ExitStack, nullcontext
from dataclasses import dataclass, field, replace
from pathlib import Path
from time import time

from specollama.backends.engines.base import Engine, Facts
from specollama.backends.engines.token_texts import Lexicon
from specollama.backends.llama_cpp import model_thread, profiling
from specollama.backends.llama_cpp.chat_template import rendered
from specollama.backends.llama_cpp.gguf_metadata import refuse_unreadable
from specollama.backends.llama_cpp.sampler import Sampler
from specollama.backends.llama_cpp.tokenizer import LlamaVocabulary
from specollama.backends.ollama.model_info import Model
from specollama.backends.ollama.tokenizer import vocabulary_of
from specollama.backends.timings import over
from specollama.config.settings import FileRef, ModelRef, PairSettings
from specollama.pairs.drafters import Drafting, lookahead_of
from specollama.pairs.feasibility import ReplyContext
from specollama.pairs.model_loading import Opening, load_options
from specollama.pairs.prompt import without_begin_marker
from specollama.pairs.routes.scoring_feasibility import asked
from specollama.pairs.routes.scoring_profiling import costs_key, measure
from specollama.pairs.routes.scoring_prompt import Messages
from specollama.pairs.served_drafters import drafting_ahead, served
from specollama.spec_decode.cost_curve import CostCurve
from specollama.spec_decode.draft_ahead import DraftAhead
from specollama.spec_decode.interfaces import Drafter
from specollama.spec_decode.lookahead import Lookahead
from specollama.spec_decode.types import Rule, SamplingOptions

_SAMPLE = 'def area(r):\n    return 3.14159 * r**2  # naïve, 日本語, 🙂\n\nIt isn\'t 1,024: "quoted" <b>text</b>'
_UNMEASURED = {1: 1.0}  # seconds; of no matter where the lookahead is fixed


@dataclass(frozen=True, slots=True)
class Planned:
    """What drafts in one reply, how much, and how it is judged. `ahead`: those that draft while the engine scores."""

    drafter: Drafter
    lookahead: Lookahead
    rule: Rule
    ahead: list[DraftAhead]


@dataclass(slots=True)
class ScoringPair:
    """Close it with `close`, which keeps what was learnt. `place`: a URL of the engine; `key`: what its costs go by.

    `vocabulary`: a draft model's tokenizer, where it is the target's, too. `served`: a draft model on an Ollama.
    """

    engine: Engine
    facts: Facts
    kind: str
    place: str
    key: str
    drafting: Drafting
    lexicon: Lexicon
    vocabulary: LlamaVocabulary | None = None
    served: Model | None = None
    notices: list[str] = field(default_factory=list)  # lines for the user, once
    _busy: asyncio.Lock = field(default_factory=asyncio.Lock)
    _measuring: asyncio.Lock = field(default_factory=asyncio.Lock)

    async def close(self) -> None:
        if self.drafts:
            self.drafting.keep()
        await model_thread.do(self._free)

    def _free(self, stopped: Callable[[], bool]) -> None:
        for opened in self.drafting.drafts:
            opened.close()
        if self.vocabulary and all(self.vocabulary is not opened.vocabulary for opened in self.drafting.drafts):
            self.vocabulary.close()

    async def join(self, served: Model) -> None:
        """Let a draft model on an Ollama draft as well. Raises EndpointError."""
        if self.vocabulary is None:
            self.vocabulary = self.lexicon.vocabulary = await _shared(self.engine, served)
        self.served = served

    @property
    def drafts(self) -> bool:
        """Whether there is anything that drafts."""
        return bool(self.drafting.drafts or self.drafting.lookup or self.served)

    @property
    def busy(self) -> bool:
        """Whether another reply drafts with the models opened here, which have one context each."""
        return self._busy.locked()

    def alone(self) -> AbstractAsyncContextManager[object]:
        """For the time of a reply that is speculated."""
        return self._busy if self.drafting.drafts else nullcontext()

    def told(self) -> tuple[str, ...]:
        """The notices that weren't told yet."""
        notices, self.notices = tuple(self.notices), []
        return notices

    def measured(self, sampling: SamplingOptions) -> profiling.ModelCosts | None:
        """What the engine costs, asked as for such a reply, if that is known."""
        known = self.drafting.kept.models.get(self._key(sampling))
        return None if known and over(known.until, time()) else known

    async def costs(self, sampling: SamplingOptions) -> profiling.ModelCosts:
        """The same; measured the first time."""
        async with self._measuring:
            known = self.measured(sampling)
            if known is None:
                known = await measure(self.engine, self.facts, sampling)
                kept = self.drafting.kept
                self.drafting.kept = kept.model_copy(update={"models": {**kept.models, self._key(sampling): known}})
                if notice := profiling.keep(self.drafting.kept, self.drafting.file):
                    self.notices.append(notice)
        return known

    def _key(self, sampling: SamplingOptions) -> str:
        return f"{self.key}, {asked(self.engine.can, sampling)}"

    async def template(self, messages: Messages) -> str | None:
        """A chat by the draft model's template; None where no draft model has one."""
        for opened in self.drafting.drafts:
            if template := opened.model.chat_template:
                marks = opened.vocabulary
                text = rendered(template, messages, begin=marks.begin_marker, end=marks.end_marker)
                return without_begin_marker(text, marks)
        if self.served is None or not self.served.renders:
            return None
        body = {"model": self.served.name, "messages": [dict(message) for message in messages], "truncate": False}
        text_by_server = await self.served.server.render(body)
        return None if text_by_server is None else without_begin_marker(text_by_server, self.vocabulary)

    def planned(self, settings: PairSettings, context: ReplyContext, tokens: list[int], most: int) -> Planned:
        """For one reply. `tokens`: of all its text, to which the target adds; `most`: to be drafted in a round."""
        sampling = context.sampling
        rule = Rule.GREEDY if sampling.greedy else Rule.MATCH
        others = [served(self.served, context, self.place)] if self.served else []
        known = self.measured(sampling)
        planner = self.drafting.planner(
            CostCurve(dict(known.passes) if known else dict(_UNMEASURED)), rule, sampling, others, tokens
        )
        lookahead = lookahead_of(settings, planner, drafting=self.drafts)
        planner.most = max(1, min(planner.most, most))
        planner.forced = tuple(min(length, planner.most) for length in planner.forced)
        # The engine draws by itself: what it is likeliest to draw is the best guess.
        guessing = Sampler(replace(sampling, temperature=0.0), 0)
        drafter = self.drafting.drafter(planner, guessing, tokens, self.lexicon.text, others)
        return Planned(drafter, lookahead, rule, drafting_ahead(others))


async def open_pair(
    engine: Engine, kind: str, target: ModelRef, settings: PairSettings, state: Path | None = None
) -> ScoringPair:
    """Open what drafts for an engine. `state`: the folder that keeps what is learnt; None: the user's.

    Raises RunError when a draft's file can't be opened, EndpointError."""
    facts = await engine.facts()
    key, options = costs_key(target, facts), load_options(settings.options, settings)
    files = {str(draft): draft.path for draft in settings.drafts if isinstance(draft, FileRef)}
    for path in files.values():
        refuse_unreadable(path)
    file = profiling.state_file(key, *(profiling.model_key(path, options) for path in files.values()), folder=state)
    kept, notice = profiling.recall(file)
    opening = Opening(options, settings.requantize, dict(kept.models), [notice] if notice else [])
    opened = await model_thread.do(lambda stopped: opening.drafts(files, stopped))
    with ExitStack() as undo:
        for model in opened:
            undo.callback(model.close)
        for model in opened:
            model.same = await same_tokens(engine, model.vocabulary)
        undo.pop_all()
    vocabulary = next((model.vocabulary for model in opened if model.same), None)
    drafting = Drafting(opened, settings.looks_up, file, kept.model_copy(update={"models": opening.measured}))
    lexicon = Lexicon(engine, vocabulary)
    return ScoringPair(
        engine, facts, kind, target.endpoint.url, key, drafting, lexicon, vocabulary, notices=opening.notices
    )


async def _shared(engine: Engine, served: Model) -> LlamaVocabulary | None:
    """The served draft model's tokenizer, if it is the target's, too."""
    vocabulary = await vocabulary_of(served)
    if not isinstance(vocabulary, LlamaVocabulary):
        return None
    same = False
    try:
        same = await same_tokens(engine, vocabulary)
    finally:
        if not same:
            vocabulary.close()
    return vocabulary if same else None


async def same_tokens(engine: Engine, vocabulary: LlamaVocabulary) -> bool:
    """Whether both cut a text of many kinds alike. Only drafts rest on it: where it errs they are rejected."""
    return await engine.tokenize(_SAMPLE, whole=False) == vocabulary.fragment(_SAMPLE)
