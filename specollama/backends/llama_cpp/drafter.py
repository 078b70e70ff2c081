"""Drafter with a model opened in process."""

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
    """Decides after each drafted token whether to go on, and how much of a long text to prefill before the first."""

    def should_extend(self, draft: Draft) -> bool: ...

    def prefill_window(self, name: str) -> int: ...


@dataclass(slots=True)
class LocalDrafter:
    """A draft model in process. It draws as the target would, with the target's noise: see `sampler`.

    Under REJECTION each proposal has noise of its own: a place that is drafted again after a rejection must not be
    drawn with the noise from which the planner has learnt whether to draft there.

    `tokens` gives the tokens of the text so far, in the model's own vocabulary: the target's path where the two are
    the same (`shares_tokenizer`). `name` is what the pace knows it by. Of a text of which more than the pace's window
    is to be read the model gets the end alone, after its first tokens (without which attention falters: Xiao et al.
    2024).
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
    _window_start: int | None = None  # the first token after the sinks that the model gets

    def uncached_tokens(self, text: str) -> int:
        """Tokens of the text that the model would have to prefill before it can draft."""
        tokens = self._windowed(self.tokens(text))
        return len(tokens) - self.model.cached_tokens(tokens)

    def _windowed(self, tokens: list[int]) -> list[int]:
        """The part of the text that the model gets. The first draft decides it."""
        begin = self._begin(tokens) if self._window_start is None else self._window_start
        return tokens[:_ATTENTION_SINKS] + tokens[begin:] if begin > _ATTENTION_SINKS else list(tokens)

    def _begin(self, tokens: list[int]) -> int:
        window = self.pacing.prefill_window(self.name)
        unread = len(tokens) - self.model.cached_tokens(tokens)
        return len(tokens) - window if unread > window + _ATTENTION_SINKS else 0

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
            chosen, sure, q = self._sample(sampler, row, tokens, position + len(tokens))
            draft = replace(draft, step_seconds=(*draft.step_seconds, perf_counter() - began))
            if not (text := self.vocabulary.token_text(chosen)) or self.vocabulary.is_end(chosen):
                break
            token = Token(text, None, chosen if self.shares_tokenizer else None)
            draft = replace(draft, tokens=(*draft.tokens, token), q=(*draft.q, q), confidence=(*draft.confidence, sure))
            tokens.append(chosen)
            if len(draft.tokens) >= count or not self.pacing.should_extend(draft):
                break
        return draft

    def _fresh_sampler(self) -> Sampler:
        return replace(self.sampler, seed=secrets.randbits(62))

    def _sample(
        self, sampler: Sampler, row: Logits, before: list[int], position: int
    ) -> tuple[int, float, Distribution | None]:
        """A token, how sure the model is of its best one, and what the token was drawn from."""
        best, sure = top_token_and_probability(row)
        if sampler.options.greedy:
            return best, sure, None
        q = (
            rejection_distribution(sampler, self.vocabulary, row, before)
            if self.rule is AcceptanceMethod.REJECTION
            else None
        )
        return sampler.draw(row, before, position), sure, q
