"""Drafter that runs a draft model in this process."""

from __future__ import annotations

import secrets
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from time import perf_counter
from typing import Protocol

from specollama.backends.llama_cpp import model_thread
from specollama.backends.llama_cpp.model import Cancelled, LlamaModel, Logits
from specollama.backends.llama_cpp.sampler import Sampler, top_token_and_probability
from specollama.backends.llama_cpp.target import rejection_distribution
from specollama.backends.llama_cpp.tokenizer import LlamaTokenizer
from specollama.spec_decode.types import AcceptanceMethod, Distribution, Draft, Token, VerifyResult

_ATTENTION_SINKS = 4  # tokens


class DraftPacing(Protocol):
    """Decides after each drafted token whether to draft another one, and how much of a long text to prefill."""

    def should_extend(self, draft: Draft) -> bool: ...

    def prefill_window(self, name: str) -> int: ...


@dataclass(slots=True)
class LocalDrafter:
    """A draft model in this process. It samples as the target does, with the target's noise (see `sampler`).

    Under REJECTION each proposal uses fresh noise. A place that is drafted again after a rejection must not be sampled
    with the noise from which the planner has learnt whether to draft there.

    `tokens` maps the text so far to tokens of the draft model's vocabulary; they are the target's own tokens when both
    share a tokenizer (`shares_tokenizer`). `name` identifies the drafter to `pacing`. When more than the pacing's
    window would have to be prefilled, the model reads only the first tokens and the end of the text. The first tokens
    stay because they are attention sinks (Xiao et al. 2024).
    """

    model: LlamaModel
    vocabulary: LlamaTokenizer
    tokens: Callable[[str], list[int]]
    sampler: Sampler
    pacing: DraftPacing
    name: str
    rule: AcceptanceMethod
    prompt_tokens: int  # tokens
    shares_tokenizer: bool = True
    _window_start: int | None = None  # index of the first token that the model reads after the attention sinks

    def uncached_tokens(self, text: str) -> int:
        """Tokens of the text that the model would have to prefill before it can draft."""
        tokens = self._windowed(self.tokens(text))
        return len(tokens) - self.model.cached_tokens(tokens)

    def _windowed(self, tokens: list[int]) -> list[int]:
        """The tokens that the model reads. The first draft sets where the window starts."""
        begin = self._begin(tokens) if self._window_start is None else self._window_start
        return tokens[:_ATTENTION_SINKS] + tokens[begin:] if begin > _ATTENTION_SINKS else list(tokens)

    def _begin(self, tokens: list[int]) -> int:
        window = self.pacing.prefill_window(self.name)
        uncached = len(tokens) - self.model.cached_tokens(tokens)
        return len(tokens) - window if uncached > window + _ATTENTION_SINKS else 0

    async def propose(self, text: str, count: int) -> Draft:
        return await model_thread.run_on_model_thread(partial(self._propose, text, count))

    def learn(self, verdict: VerifyResult) -> None:
        """What it has read beyond the text it takes back the next time."""

    def _propose(self, text: str, count: int, stopped: Callable[[], bool]) -> Draft:
        if self._window_start is None:
            self._window_start = self._begin(self.tokens(text))
        tokens = self._windowed(self.tokens(text))
        position = len(self.tokens(text)) - self.prompt_tokens - len(tokens)  # of the first of the tokens, in the reply
        sampler = self._fresh_sampler() if self.rule is AcceptanceMethod.REJECTION else self.sampler
        draft = Draft(source=self.name, prefilled_tokens=len(tokens) - self.model.cached_tokens(tokens))
        while len(tokens) < self.model.context_length and not stopped():
            began = perf_counter()
            try:
                row = self.model.logits(tokens, 1, stopped)[0]
            except Cancelled:
                break
            chosen, confidence, q = self._sample(sampler, row, tokens, position + len(tokens))
            draft = replace(draft, step_seconds=(*draft.step_seconds, perf_counter() - began))
            if not (text := self.vocabulary.token_text(chosen)) or self.vocabulary.is_end(chosen):
                break
            token = Token(text, None, chosen if self.shares_tokenizer else None)
            draft = replace(
                draft, tokens=(*draft.tokens, token), q=(*draft.q, q), confidence=(*draft.confidence, confidence)
            )
            tokens.append(chosen)
            if len(draft.tokens) >= count or not self.pacing.should_extend(draft):
                break
        return draft

    def _fresh_sampler(self) -> Sampler:
        return replace(self.sampler, seed=secrets.randbits(62))

    def _sample(
        self, sampler: Sampler, row: Logits, before: list[int], position: int
    ) -> tuple[int, float, Distribution | None]:
        """The sampled token, the probability of the model's best token, and (REJECTION only) the distribution."""
        best, confidence = top_token_and_probability(row)
        if sampler.options.greedy:
            return best, confidence, None
        q = (
            rejection_distribution(sampler, self.vocabulary, row, before)
            if self.rule is AcceptanceMethod.REJECTION
            else None
        )
        return sampler.draw(row, before, position), confidence, q
