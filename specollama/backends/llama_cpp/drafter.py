"""Drafts by a model that is opened in process."""

from __future__ import annotations

import secrets
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from time import perf_counter
from typing import Protocol

from specollama.backends.llama_cpp import model_thread
from specollama.backends.llama_cpp.model import Cancelled, LlamaModel, Logits
from specollama.backends.llama_cpp.sampler import Sampler, confidence
from specollama.backends.llama_cpp.target import rejection_distribution
from specollama.backends.llama_cpp.tokenizer import LlamaVocabulary
from specollama.spec_decode.types import Distribution, Draft, Rule, Token, Verdict

_SINKS = 4  # tokens


class Pace(Protocol):
    """Says after each drafted token whether to go on, and how much of a long text to read before the first."""

    def another(self, draft: Draft) -> bool: ...

    def window(self, name: str) -> int: ...


@dataclass(slots=True)
class LocalDrafter:
    """A draft model in process. It draws as the target would, with the target's noise: see `sampler`.

    Under REJECTION each proposal has noise of its own: a place that is drafted again after a rejection must not be
    drawn with the noise from which the planner has learnt whether to draft there.

    `tokens` gives the tokens of the text so far, in the model's own vocabulary: the target's path where the two are
    the same (`same`). `name` is what the pace knows it by. Of a text of which more than the pace's window is to be
    read the model gets the end alone, after its first tokens (without which attention falters: Xiao et al. 2024).
    """

    model: LlamaModel
    vocabulary: LlamaVocabulary
    tokens: Callable[[str], list[int]]
    sampler: Sampler
    pace: Pace
    name: str
    rule: Rule
    prompt: int  # tokens
    same: bool = True
    _from: int | None = None  # the first token after the sinks that the model gets

    def unread(self, text: str) -> int:
        """Tokens of the text that the model would have to read before it can draft."""
        tokens = self._seen(self.tokens(text))
        return len(tokens) - self.model.known(tokens)

    def _seen(self, tokens: list[int]) -> list[int]:
        """What of the text the model gets; decided at its first draft, until then as if that were now."""
        begin = self._begin(tokens) if self._from is None else self._from
        return tokens[:_SINKS] + tokens[begin:] if begin > _SINKS else list(tokens)

    def _begin(self, tokens: list[int]) -> int:
        window = self.pace.window(self.name)
        unread = len(tokens) - self.model.known(tokens)
        return len(tokens) - window if unread > window + _SINKS else 0

    async def propose(self, text: str, count: int) -> Draft:
        return await model_thread.do(partial(self._propose, text, count))

    def learn(self, verdict: Verdict) -> None:
        """What it has read beyond the text it takes back the next time."""

    def _propose(self, text: str, count: int, stopped: Callable[[], bool]) -> Draft:
        if self._from is None:
            self._from = self._begin(self.tokens(text))
        tokens = self._seen(self.tokens(text))
        position = len(self.tokens(text)) - self.prompt - len(tokens)  # of the first of the tokens, in the reply
        sampler = self._fresh_sampler() if self.rule is Rule.REJECTION else self.sampler
        draft = Draft(source=self.name, read=len(tokens) - self.model.known(tokens))
        while len(tokens) < self.model.context_length and not stopped():
            began = perf_counter()
            try:
                row = self.model.rows(tokens, 1, stopped)[0]
            except Cancelled:
                break
            chosen, sure, q = self._drawn(sampler, row, tokens, position + len(tokens))
            draft = replace(draft, steps=(*draft.steps, perf_counter() - began))
            if not (text := self.vocabulary.whole(chosen)) or self.vocabulary.ends(chosen):
                break
            token = Token(text, None, chosen if self.same else None)
            draft = replace(draft, tokens=(*draft.tokens, token), q=(*draft.q, q), confidence=(*draft.confidence, sure))
            tokens.append(chosen)
            if len(draft.tokens) >= count or not self.pace.another(draft):
                break
        return draft

    def _fresh_sampler(self) -> Sampler:
        return replace(self.sampler, seed=secrets.randbits(62))

    def _drawn(
        self, sampler: Sampler, row: Logits, before: list[int], position: int
    ) -> tuple[int, float, Distribution | None]:
        """A token, how sure the model is of its best one, and what the token was drawn from."""
        best, sure = confidence(row)
        if sampler.options.greedy:
            return best, sure, None
        q = rejection_distribution(sampler, self.vocabulary, row, before) if self.rule is Rule.REJECTION else None
        return sampler.draw(row, before, position), sure, q
