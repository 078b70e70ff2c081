"""Models of the route `scoring`: the engine, the loaded drafts, their timings, and the drafting of one reply."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from contextlib import AbstractAsyncContextManager, ExitStack, nullcontext
from dataclasses import dataclass, field, replace
from pathlib import Path
from time import time

from specollama.backends.engines.base import Engine, EngineInfo
from specollama.backends.engines.token_texts import TokenTexts
from specollama.backends.llama_cpp import model_thread, profiling
from specollama.backends.llama_cpp.chat_template import render_chat
from specollama.backends.llama_cpp.sampler import Sampler
from specollama.backends.llama_cpp.tokenizer import LlamaTokenizer
from specollama.backends.ollama.model_info import ModelInfo
from specollama.backends.ollama.tokenizer import load_tokenizer
from specollama.backends.timings import has_expired
from specollama.config.settings import FileRef, ModelRef, PairSettings
from specollama.pairs.decoding import choose_acceptance_method, lookahead_for
from specollama.pairs.drafters import DrafterSet
from specollama.pairs.feasibility import ReplyContext
from specollama.pairs.model_loading import ModelLoader, load_options, readable_drafts
from specollama.pairs.prompt import strip_bos
from specollama.pairs.routes.scoring_feasibility import request_pattern, why_not_rejection
from specollama.pairs.routes.scoring_profiling import profile_engine, profile_key
from specollama.pairs.routes.scoring_prompt import Messages
from specollama.pairs.served_drafters import ahead_drafters, make_served_drafter
from specollama.spec_decode.cost_curve import CostCurve
from specollama.spec_decode.draft_ahead import DraftAhead
from specollama.spec_decode.interfaces import Drafter
from specollama.spec_decode.lookahead import Lookahead
from specollama.spec_decode.types import AcceptanceMethod, SamplingOptions

_SAMPLE = 'def area(r):\n    return 3.14159 * r**2  # naïve, 日本語, 🙂\n\nIt isn\'t 1,024: "quoted" <b>text</b>'
_UNMEASURED = {1: 1.0}  # seconds; of no matter where the lookahead is fixed


@dataclass(frozen=True, slots=True)
class ReplyDrafting:
    """Drafter, lookahead and acceptance method of one reply. `ahead`: those that draft while the engine scores."""

    drafter: Drafter
    lookahead: Lookahead
    rule: AcceptanceMethod
    ahead: list[DraftAhead]


@dataclass(slots=True)
class ScoringModels:
    """Close it with `close`, which saves calibration and timings. `engine_url`: a URL of the engine; `profile_key`: the
    key of its saved timings.

    `vocabulary`: a draft model's tokenizer, where it is the target's, too. `served_draft`: a draft model on an Ollama.
    """

    engine: Engine
    facts: EngineInfo
    engine_name: str
    engine_url: str
    profile_key: str
    drafters: DrafterSet
    token_texts: TokenTexts
    vocabulary: LlamaTokenizer | None = None
    served_draft: ModelInfo | None = None
    notices: list[str] = field(default_factory=list)  # lines for the user, once
    _reply_lock: asyncio.Lock = field(default_factory=asyncio.Lock)
    _profile_lock: asyncio.Lock = field(default_factory=asyncio.Lock)

    async def close(self) -> None:
        if self.can_draft:
            self.drafters.save()
        await model_thread.run_on_model_thread(self._free)

    def _free(self, stopped: Callable[[], bool]) -> None:
        for opened in self.drafters.drafts:
            opened.close()
        if self.vocabulary and all(self.vocabulary is not opened.vocabulary for opened in self.drafters.drafts):
            self.vocabulary.close()

    async def add_served_draft(self, served: ModelInfo) -> None:
        """Let a draft model on an Ollama draft as well. Raises EndpointError."""
        if self.vocabulary is None:
            self.vocabulary = self.token_texts.vocabulary = await _shared_tokenizer(self.engine, served)
        self.served_draft = served

    @property
    def can_draft(self) -> bool:
        """Whether there is anything that drafts."""
        return bool(self.drafters.drafts or self.drafters.lookup or self.served_draft)

    @property
    def is_busy(self) -> bool:
        """Whether another reply drafts with the models opened here, which have one context each."""
        return self._reply_lock.locked()

    def hold(self) -> AbstractAsyncContextManager[object]:
        """Context manager that a speculated reply holds while it runs."""
        return self._reply_lock if self.drafters.drafts else nullcontext()

    def pop_notices(self) -> tuple[str, ...]:
        """Return the notices that weren't shown yet."""
        notices, self.notices = tuple(self.notices), []
        return notices

    def known_profile(self, sampling: SamplingOptions) -> profiling.ModelProfile | None:
        """The engine's timings for replies with such sampling options; None if they aren't known."""
        known = self.drafters.profile.models.get(self._key(sampling))
        return None if known and has_expired(known.until, time()) else known

    async def profile(self, sampling: SamplingOptions) -> profiling.ModelProfile:
        """The engine's timings; measured at the first call."""
        async with self._profile_lock:
            known = self.known_profile(sampling)
            if known is None:
                known = await profile_engine(self.engine, self.facts, sampling)
                saved = self.drafters.profile
                self.drafters.profile = saved.model_copy(
                    update={"models": {**saved.models, self._key(sampling): known}}
                )
                if notice := profiling.save(self.drafters.profile, self.drafters.file):
                    self.notices.append(notice)
        return known

    def _key(self, sampling: SamplingOptions) -> str:
        return f"{self.profile_key}, {request_pattern(self.engine.capabilities, sampling)}"

    async def render_with_draft(self, messages: Messages) -> str | None:
        """A chat by the draft model's template; None where no draft model has one."""
        for opened in self.drafters.drafts:
            if template := opened.model.chat_template:
                marks = opened.vocabulary
                text = render_chat(template, messages, begin=marks.bos_text, end=marks.eos_text)
                return strip_bos(text, marks)
        if self.served_draft is None or not self.served_draft.renders_prompts:
            return None
        body = {"model": self.served_draft.name, "messages": [dict(message) for message in messages], "truncate": False}
        text_by_server = await self.served_draft.server.render(body)
        return None if text_by_server is None else strip_bos(text_by_server, self.vocabulary)

    def prepare_reply(self, context: ReplyContext, tokens: list[int], limit: int) -> ReplyDrafting:
        """The drafting of one reply.

        `tokens`: ids of the text so far, which the target extends; `limit`: tokens that a round can verify at most.
        """
        settings, sampling = context.settings, context.sampling
        rule = choose_acceptance_method(settings.rule, sampling, why_not_rejection(self.engine_name))
        served = [make_served_drafter(self.served_draft, context, self.engine_url)] if self.served_draft else []
        known = self.known_profile(sampling)
        planner = self.drafters.make_planner(
            CostCurve(dict(known.passes) if known else dict(_UNMEASURED)), rule, sampling, served, tokens
        )
        planner.draft_limit = max(1, min(planner.draft_limit, limit))
        # The engine samples by itself: the token that it samples most often is the best guess.
        sampler = Sampler(replace(sampling, temperature=0.0), 0)
        drafter = self.drafters.make_drafter(
            planner, sampler, tokens, self.token_texts.text, served, self.notices.append
        )
        lookahead = lookahead_for(settings, planner=planner, can_draft=self.can_draft)
        return ReplyDrafting(drafter, lookahead, rule, ahead_drafters(served))


async def open_scoring_models(
    engine: Engine, kind: str, target: ModelRef, settings: PairSettings, state: Path | None = None
) -> ScoringModels:
    """Load the drafters of an engine's target. `state`: the folder for saved timings; None: the user's.

    A draft's file that can't be opened is left out, with a notice. Raises EndpointError."""
    facts = await engine.info()
    key, options = profile_key(target, facts), load_options(settings.options, settings)
    files = {str(draft): draft.path for draft in settings.drafts if isinstance(draft, FileRef)}
    files, left_out = readable_drafts(files)
    file = profiling.profile_file(key, *(profiling.model_key(path, options) for path in files.values()), folder=state)
    saved, notice = profiling.load(file)
    opening = ModelLoader(options, settings.requantize, dict(saved.models), [*left_out, *([notice] if notice else [])])
    opened = await model_thread.run_on_model_thread(lambda stopped: opening.load_drafts(files, stopped))
    with ExitStack() as undo:
        for model in opened:
            undo.callback(model.close)
        for model in opened:
            model.shares_tokenizer = await tokenizes_alike(engine, model.vocabulary)
        undo.pop_all()
    vocabulary = next((model.vocabulary for model in opened if model.shares_tokenizer), None)
    drafting = DrafterSet(opened, settings.uses_lookup, file, saved.model_copy(update={"models": opening.profiles}))
    lexicon = TokenTexts(engine, vocabulary)
    return ScoringModels(
        engine, facts, kind, target.endpoint.url, key, drafting, lexicon, vocabulary, notices=opening.notices
    )


async def _shared_tokenizer(engine: Engine, served: ModelInfo) -> LlamaTokenizer | None:
    """The served draft model's tokenizer, if it is the target's, too."""
    vocabulary = await load_tokenizer(served)
    if not isinstance(vocabulary, LlamaTokenizer):
        return None
    same = False
    try:
        same = await tokenizes_alike(engine, vocabulary)
    finally:
        if not same:
            vocabulary.close()
    return vocabulary if same else None


async def tokenizes_alike(engine: Engine, vocabulary: LlamaTokenizer) -> bool:
    """Whether both cut a text of many kinds alike. Only drafts rest on it: where it errs they are rejected."""
    return await engine.tokenize(_SAMPLE, whole=False) == vocabulary.encode_fragment(_SAMPLE)
