"""The target of route `local`: a model in this process that scores a whole draft in one forward pass."""

from __future__ import annotations

import codecs
from collections.abc import AsyncGenerator, Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial

import numpy as np

from specollama.backends.llama_cpp import model_thread
from specollama.backends.llama_cpp.model import Cancelled, LlamaModel, Logits
from specollama.backends.llama_cpp.sampler import Sampler, log_probability
from specollama.backends.llama_cpp.tokenizer import LlamaTokenizer
from specollama.spec_decode.acceptance import renormalize_visible
from specollama.spec_decode.types import (
    AcceptanceMethod,
    Distribution,
    DoneReason,
    Draft,
    TargetContinuation,
    TargetRow,
    TargetScores,
    Token,
    VerifyResult,
)

_LARGEST_SUPPORT = 256  # tokens; REJECTION needs the whole distribution, larger ones are judged by exact match


@dataclass(slots=True)
class TokenSequence:
    """The tokens of the prompt and of the reply so far, in the target's vocabulary. The target appends to it."""

    tokens: list[int]
    prompt_tokens: int = field(init=False)  # tokens of the prompt

    def __post_init__(self) -> None:
        self.prompt_tokens = len(self.tokens)


@dataclass(frozen=True, slots=True)
class LocalTarget:
    """Route `local`: scores all places of a draft in one forward pass.

    Each token depends on the text before it and the sampler's seed alone, not on the draft. `top_count`: number of
    most probable tokens in each row.
    """

    model: LlamaModel
    vocabulary: LlamaTokenizer
    sequence: TokenSequence
    sampler: Sampler
    rule: AcceptanceMethod
    top_count: int = 2

    async def score(self, draft: Draft) -> TargetScores:
        return await model_thread.run_on_model_thread(partial(self._score, draft))

    async def commit(self, verdict: VerifyResult, limit: int | None) -> TargetContinuation:
        self.sequence.tokens.extend(self._id(emitted.token) for emitted in verdict.emitted)
        if verdict.hidden:
            return await model_thread.run_on_model_thread(partial(self._decode_character, limit))
        return self._continuation("", 0, None)

    async def stream(self, limit: int | None) -> AsyncGenerator[Token | TargetContinuation, None]:
        hidden = 0  # tokens after the first one of each character that took several tokens
        while limit is None or limit > 0:
            written = await model_thread.run_on_model_thread(partial(self._decode_character, limit))
            for token in written.tokens:
                yield token
            hidden += written.sampled - len(written.tokens)
            if written.end:
                yield TargetContinuation(sampled=hidden, end=written.end, reason=written.reason)
                return
            limit = None if limit is None else limit - written.sampled
        yield TargetContinuation(sampled=hidden, end=DoneReason.LENGTH)

    @property
    def _is_full(self) -> bool:
        return len(self.sequence.tokens) >= self.model.context_length

    def _score(self, draft: Draft, stopped: Callable[[], bool]) -> TargetScores:
        tokens = self.sequence.tokens
        room = self.model.context_length - len(tokens)
        drafted = self._retokenized(draft)[: max(0, room)]
        read = len(tokens) - 1 - min(self.model.cached_tokens(tokens), len(tokens) - 1)
        with suppress(Cancelled):
            logits = self.model.logits([*tokens, *(token for token, _ in drafted)], len(drafted) + 1, stopped)
            return TargetScores(self._rows(drafted, logits), rows_requested=len(drafted) + 1, prefilled_tokens=read)
        return TargetScores({})  # the caller was cancelled and doesn't read it

    def _rows(self, drafted: list[tuple[int, str]], logits: Sequence[Logits]) -> dict[int, TargetRow]:
        """The rows by text offset, up to the first draft token that the target didn't sample; all under REJECTION."""
        rows, offset, before = dict[int, TargetRow](), 0, list(self.sequence.tokens)
        for row, (token, text) in zip(logits, [*drafted, (-1, "")], strict=True):
            chosen = self.sampler.draw(row, before, len(before) - self.sequence.prompt_tokens)
            rows[offset] = self._row(chosen, row, before)
            # Two tokens may have the same text: the later rows would follow the token that wasn't sampled.
            same_text = chosen != token and self.vocabulary.display_text(chosen) == text
            if same_text or (chosen != token and self.rule is not AcceptanceMethod.REJECTION):
                break
            before.append(token)
            offset += len(text)
        return rows

    def _row(self, chosen: int, logits: Logits, before: Sequence[int]) -> TargetRow:
        if self.vocabulary.is_end(chosen):
            return TargetRow(None, end=True)
        text = self.vocabulary.token_text(chosen)
        if not text:
            return TargetRow(None, p=self._distribution(logits, before))
        best = most_probable(logits, self.top_count)
        logprobs = log_probability(logits, [chosen, *best])
        top = tuple(
            Token(self.vocabulary.display_text(token), logprob, token)
            for token, logprob in zip(best, logprobs[1:], strict=True)
        )
        return TargetRow(Token(text, logprobs[0], chosen), top=top, p=self._distribution(logits, before))

    def _distribution(self, logits: Logits, before: Sequence[int]) -> Distribution | None:
        return (
            rejection_distribution(self.sampler, self.vocabulary, logits, before)
            if self.rule is AcceptanceMethod.REJECTION
            else None
        )

    def _decode_character(self, limit: int | None, stopped: Callable[[], bool]) -> TargetContinuation:
        """Sample tokens until they complete a character; appends them to the sequence."""
        decoder, text, sampled = codecs.getincrementaldecoder("utf-8")("replace"), "", 0
        tokens = self.sequence.tokens
        while not self._is_full and (limit is None or sampled < limit) and not stopped():
            row = self.model.logits(tokens, 1, stopped)[0]
            chosen = self.sampler.draw(row, tokens, len(tokens) - self.sequence.prompt_tokens)
            if self.vocabulary.is_end(chosen):
                return self._continuation(text + decoder.decode(b"", True), sampled, DoneReason.STOP)
            tokens.append(chosen)
            sampled += 1
            text += decoder.decode(self.vocabulary.token_bytes(chosen))
            if text and not decoder.getstate()[0]:
                return self._continuation(text, sampled, None)
        return self._continuation(text, sampled, DoneReason.LENGTH)  # an incomplete character is dropped, as servers do

    def _continuation(self, text: str, sampled: int, end: DoneReason | None) -> TargetContinuation:
        tokens = (Token(text),) if text else ()
        if self._is_full and end is not DoneReason.STOP:
            return TargetContinuation(tokens, sampled, end=DoneReason.LENGTH, reason=self._why_full)
        return TargetContinuation(tokens, sampled, end=end)

    @property
    def _why_full(self) -> str:
        """The reason for stopping at a full context. A server would drop the oldest tokens instead."""
        return f"the context of {self.model.context_length} tokens is full: give a larger num_ctx"

    def _retokenized(self, draft: Draft) -> list[tuple[int, str]]:
        """The draft as target tokens with their texts.

        Stops at the first token without a text of its own, and at the first one that departs from the draft's text.
        """
        if self.rule is AcceptanceMethod.REJECTION:
            return self._aligned_singly(draft)
        ids = [token.id for token in draft.tokens if token.id is not None]
        if len(ids) < len(draft.tokens):  # the drafter has no token ids, or has another tokenizer
            ids = self.vocabulary.encode_continuation(draft.text)
        aligned, rest = list[tuple[int, str]](), draft.text
        for token, text in zip(ids, map(self.vocabulary.token_text, ids), strict=True):
            if not (text and rest.startswith(text)):
                break
            aligned.append((token, text))
            rest = rest.removeprefix(text)
        return aligned

    def _aligned_singly(self, draft: Draft) -> list[tuple[int, str]]:
        """Each drafted token as the target's token of the same text, up to the first that the target doesn't have.

        REJECTION judges the drafted tokens themselves. Whether it tests a place must not depend on later drafted
        tokens, and the tokens of the whole draft's text do: "a" and "b" may become one token "ab".
        """
        aligned = list[tuple[int, str]]()
        for drafted in draft.tokens:
            token = self.vocabulary.id_by_text.get(drafted.text) if drafted.id is None else drafted.id
            if token is None or self.vocabulary.token_text(token) != drafted.text:
                break
            aligned.append((token, drafted.text))
        return aligned

    def _id(self, token: Token) -> int:
        return token.id if token.id is not None else self.vocabulary.id_by_text[token.text]


def rejection_distribution(
    sampler: Sampler, vocabulary: LlamaTokenizer, logits: Logits, before: Sequence[int]
) -> Distribution | None:
    """The sampling distribution over token texts, renormalised over the unambiguous ones.

    None when more than _LARGEST_SUPPORT tokens may be drawn. Raises RunError as `Sampler.distribution` does.
    """
    tokens, probabilities = sampler.distribution(logits, before)
    if len(tokens) > _LARGEST_SUPPORT:
        return None
    texts = [Token("" if vocabulary.is_end(int(token)) else vocabulary.token_text(int(token))) for token in tokens]
    return renormalize_visible(texts, probabilities.tolist(), vocabulary.unambiguous_texts)


def most_probable(logits: Logits, count: int) -> list[int]:
    """The ids of the `count` tokens with the largest logits, largest first. `logits` has shape (vocabulary,)."""
    if count <= 2:  # far faster than a partition of a large vocabulary
        best = int(np.argmax(logits))
        if count < 2:
            return [best][:count]
        largest, logits[best] = logits[best], -np.inf
        second = int(np.argmax(logits))
        logits[best] = largest
        return [best, second]
    chosen = np.argpartition(logits, len(logits) - count)[-count:]
    return [int(token) for token in chosen[np.argsort(-logits[chosen], kind="stable")]]
