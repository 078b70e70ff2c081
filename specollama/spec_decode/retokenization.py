"""Finds the positions of a reply at which its text, tokenized again, gives the tokens that were sampled.

A server takes text, so that every request tokenizes the reply again. If the new tokens differ from the sampled ones,
the target would score another context than its own. A *path* is the sequence of tokens that the target has prefilled
or sampled. A cut of the reply is good (aligned) if the text before it tokenizes to that path.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from specollama.spec_decode.types import Token


class Tokenizer(Protocol):
    """A model's exact tokenizer, as its server applies it to a prompt."""

    @property
    def unambiguous_texts(self) -> frozenset[str]:
        """Texts that exactly one token prints. No other token, and no sequence of character fragments, prints them."""
        ...

    def encode(self, text: str) -> tuple[int, ...]:
        """Token ids of a full prompt. Adds the BOS token if the model wants it; parses special tokens."""
        ...

    def display_text(self, token: int) -> str:
        """Text that the server prints for a token id: "" for control tokens and fragments of characters."""
        ...


@dataclass(frozen=True, slots=True)
class CutPoint:
    """A cut of the reply: prompt and reply text before it, and the number of reply tokens before it."""

    text: str
    position: int


class TokenPath(Protocol):
    """The target's position in its reply, and the cuts from which requests may start.

    `anchor` is the last good cut. `pending` holds the token texts after it, which are not known to end at a good cut.
    `sampled` counts the tokens of `pending`; it is larger than the number of texts if some tokens print no text.
    `is_stuck`: a request can't start at the end of `pending`; it must start from the anchor.
    """

    anchor: CutPoint
    pending: list[str]

    @property
    def sampled(self) -> int: ...

    @property
    def is_stuck(self) -> bool: ...

    def prompt_tokens_at(self, cut: CutPoint) -> int | None:
        """Number of tokens of prompt and reply before a cut; None if it is not known yet."""
        ...

    def cut_points(self, texts: Sequence[str]) -> list[CutPoint]:
        """Cuts along a draft from which the target can be scored: after 0 tokens, after 1 token, and so on."""
        ...

    def confirm(self, cut: CutPoint, prompt_eval_count: int | None) -> bool:
        """Whether the server's token count for the text before a cut is consistent with the sampled tokens."""
        ...

    def advance(self, texts: Sequence[str]) -> None:
        """Append the texts of emitted tokens to the reply."""
        ...

    def count_to_first_aligned(self, texts: Sequence[str]) -> int | None:
        """Number of texts up to the earliest good cut after `pending`, if each text is one token.

        `texts` start at the anchor. Returns None if there is no good cut or if this is unknown. Changes no state.
        """
        ...

    def resync(self, texts: Sequence[str], sampled: int) -> int | None:
        """Move the anchor to the earliest good cut after `pending`, within `texts` that the target decoded.

        `texts` start at the anchor and include `pending`; they stand for `sampled` tokens. Returns the number of texts
        before the new anchor, or None if no cut is good. The cut must be the earliest: whether a sampled token is
        used must not depend on later tokens (it is a stopping time). The furthest good cut depends on them, and would
        change the distribution.
        """
        ...


class ExactPath:
    """TokenPath with the target's own tokenizer: every cut is checked before a request uses it."""

    def __init__(self, prompt: str, vocabulary: Tokenizer) -> None:
        self.vocabulary = vocabulary
        self._ids = vocabulary.encode(prompt)  # the path up to the anchor
        self._prompt = len(self._ids)
        self.anchor = CutPoint(prompt, 0)
        self.pending: list[str] = []

    @property
    def sampled(self) -> int:
        return len(self.pending)

    @property
    def is_stuck(self) -> bool:
        return bool(self.pending)

    def prompt_tokens_at(self, cut: CutPoint) -> int:
        return self._prompt + cut.position

    def cut_points(self, texts: Sequence[str]) -> list[CutPoint]:
        good, ids = [self.anchor], self._ids
        for text in texts:
            longer = self._extended(good[-1].text, ids, text)
            if longer is None:
                break
            good.append(CutPoint(good[-1].text + text, good[-1].position + 1))
            ids = longer
        return good

    def confirm(self, cut: CutPoint, prompt_eval_count: int | None) -> bool:
        return True  # already checked with the tokenizer

    def stays_aligned(self, cut: CutPoint, tokens: Sequence[Token]) -> bool:
        """Whether the position after each of the candidate next tokens is a good cut again."""
        ids = self.vocabulary.encode(cut.text)
        return all(self._extended(cut.text, ids, token.text) is not None for token in tokens if token.text)

    def advance(self, texts: Sequence[str]) -> None:
        for place, text in enumerate(texts):
            longer = self._extended(self.anchor.text, self._ids, text)
            if longer is None:
                self.pending = list(texts[place:])
                return
            self._ids = longer
            self.anchor = CutPoint(self.anchor.text + text, self.anchor.position + 1)

    def count_to_first_aligned(self, texts: Sequence[str]) -> int | None:
        lengths = range(len(self.pending) + 1, len(texts) + 1)
        return next((used for used in lengths if self._read(texts[:used], used) is not None), None)

    def resync(self, texts: Sequence[str], sampled: int) -> int | None:
        if sampled == len(texts):
            used = self.count_to_first_aligned(texts)
            return None if used is None else self._move(texts[:used], used)
        return self._move(texts, sampled)  # some tokens are hidden: only the end can be checked

    def _move(self, texts: Sequence[str], sampled: int) -> int | None:
        ids = self._read(texts, sampled)
        if ids is None:
            return None
        self.anchor = CutPoint(self.anchor.text + "".join(texts), self.anchor.position + sampled)
        self._ids, self.pending = ids, []
        return len(texts)

    def _read(self, texts: Sequence[str], sampled: int) -> tuple[int, ...] | None:
        """Token ids up to the end of the texts, or None if the texts tokenize differently from how they were sampled.

        Hidden tokens can't be compared one by one. If there are any, only the number of tokens is compared.
        """
        ids, start = self.vocabulary.encode(self.anchor.text + "".join(texts)), len(self._ids)
        if len(ids) != start + sampled or ids[:start] != self._ids:
            return None
        shown = [self.vocabulary.display_text(token) for token in ids[start:]]
        return ids if sampled != len(texts) or shown == list(texts) else None

    def _extended(self, text: str, ids: tuple[int, ...], token: str) -> tuple[int, ...] | None:
        """Token ids with one more token, or None if the longer text tokenizes differently."""
        longer = self.vocabulary.encode(text + token)
        if len(longer) != len(ids) + 1 or longer[:-1] != ids:
            return None
        return longer if self.vocabulary.display_text(longer[-1]) == token else None


class CountedPath:
    """TokenPath without a tokenizer: assumes that a cut is good until the server's token count contradicts it.

    This check is weaker: it misses a different tokenization with the same number of tokens.
    """

    def __init__(self, prompt: str, position: int = 0) -> None:
        self.anchor = CutPoint(prompt, position)
        self.pending: list[str] = []
        self.sampled = 0
        self._prompt: int | None = None  # tokens of the prompt, after the first count from the server
        self._good = {self.anchor}  # cuts confirmed by the server's token count
        self._refuted = False

    @property
    def is_stuck(self) -> bool:
        return self._refuted

    def prompt_tokens_at(self, cut: CutPoint) -> int | None:
        return None if self._prompt is None else self._prompt + cut.position

    def cut_points(self, texts: Sequence[str]) -> list[CutPoint]:
        good = [self._end]
        for text in texts:
            good.append(CutPoint(good[-1].text + text, good[-1].position + 1))
        return good

    def confirm(self, cut: CutPoint, prompt_eval_count: int | None) -> bool:
        if prompt_eval_count is not None and self._prompt is None:
            self._prompt = prompt_eval_count - cut.position
        right = prompt_eval_count in (None, self.prompt_tokens_at(cut))  # without a count there is no contradiction
        if right:
            self._good.add(cut)
        elif cut == self._end:
            self._refuted = True
        return right

    def advance(self, texts: Sequence[str]) -> None:
        if self._end in self._good:
            self.anchor, self.pending, self.sampled = self._end, [], 0
        for place, text in enumerate(texts):
            longer = CutPoint(self.anchor.text + text, self.anchor.position + 1)
            if self.pending or longer not in self._good:
                self.pending += texts[place:]
                self.sampled += len(texts) - place
                break
            self.anchor = longer
        self._good = {cut for cut in self._good if cut.position >= self.anchor.position}

    def count_to_first_aligned(self, texts: Sequence[str]) -> int | None:
        return None  # unknown until the server's next token count

    def resync(self, texts: Sequence[str], sampled: int) -> int | None:
        self.pending, self.sampled, self._refuted = list(texts), sampled, False
        return len(texts)  # the token count of the next request shows whether this cut is good

    @property
    def _end(self) -> CutPoint:
        return CutPoint(self.anchor.text + "".join(self.pending), self.anchor.position + self.sampled)


def retokenize_draft(text: str, draft: str, vocabulary: Tokenizer) -> list[str]:
    """Return the token texts of a draft after `text`, in the target's tokenization, for a draft model with another one.

    The last token is dropped, because more text might change it. The draft ends before the first token whose text is
    not unambiguous.
    """
    before, ids = vocabulary.encode(text), vocabulary.encode(text + draft)
    if ids[: len(before)] != before:
        return []
    texts: list[str] = []
    for token in ids[len(before) : -1]:
        if (shown := vocabulary.display_text(token)) not in vocabulary.unambiguous_texts:
            break
        texts.append(shown)
    return texts if draft.startswith("".join(texts)) else []
