"""Finds the places where a reply can be cut and sent again: where its text re-tokenizes as it was sampled.

A server takes text, so what was sampled as tokens is tokenised anew in every request. Where the new tokens
differ from the sampled ones, the target would be asked about another context than it wrote itself. A *path* is
the sequence of tokens that the target has really read or sampled; a cut is good where its text gives that path.
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
        """Texts that exactly one token prints; no other token and no fragment of a character prints them."""
        ...

    def encode(self, text: str) -> tuple[int, ...]:
        """Token ids of a whole prompt: BOS added where the model wants it, control tokens recognized."""
        ...

    def display_text(self, token: int) -> str:
        """The text that the server shows for a token: "" for control tokens and fragments of characters."""
        ...


@dataclass(frozen=True, slots=True)
class CutPoint:
    """A place where the reply can be cut: the whole text before it, and the tokens of the reply in it."""

    text: str
    position: int


class TokenPath(Protocol):
    """The target's position in its reply, and the places where rows can be requested.

    `anchor` is the last good cut; `pending` are the texts of the reply after it, which are not yet known to
    lead to a good one, and `sampled` the tokens behind them: more than the texts where some had none of their own.
    `is_stuck`: the target can't be asked here, only a request from the anchor can go on.
    """

    anchor: CutPoint
    pending: list[str]

    @property
    def sampled(self) -> int: ...

    @property
    def is_stuck(self) -> bool: ...

    def prompt_tokens_at(self, cut: CutPoint) -> int | None:
        """Number of tokens of the whole prompt up to a cut; None while it is unknown."""
        ...

    def cut_points(self, texts: Sequence[str]) -> list[CutPoint]:
        """The cuts along a draft where a row can be requested: after none of its tokens, after one, and so on."""
        ...

    def confirm(self, cut: CutPoint, prompt_eval_count: int | None) -> bool:
        """Whether the server's token count for a cut agrees with the sampled tokens."""
        ...

    def advance(self, texts: Sequence[str]) -> None:
        """Append these tokens to the reply."""
        ...

    def count_to_first_aligned(self, texts: Sequence[str]) -> int | None:
        """How many of these texts lead to the earliest good cut after `pending`, if each is one token.

        `texts` begin at the anchor. None when no cut is good, or when the cursor can't tell. Moves nothing.
        """
        ...

    def resync(self, texts: Sequence[str], sampled: int) -> int | None:
        """The target wrote these texts after the anchor, `sampled` tokens in all, `pending` among them.

        Moves to the earliest good cut after `pending`; answers how many of the texts lead there, None when no cut is
        good. The earliest, because a sampled token may be kept or dropped only by a rule that has not seen the tokens
        after it (a stopping time): the furthest good cut depends on those, and would change the distribution.
        """
        ...


class ExactPath:
    """A path checked with the target's own tokenizer: every cut is verified before a row is requested there."""

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
        return True  # checked before it was asked

    def stays_aligned(self, cut: CutPoint, tokens: Sequence[Token]) -> bool:
        """Whether every one of the tokens, if it came next, would lead to a good cut again."""
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
        return self._move(texts, sampled)  # with hidden tokens among them, the end alone can be checked

    def _move(self, texts: Sequence[str], sampled: int) -> int | None:
        ids = self._read(texts, sampled)
        if ids is None:
            return None
        self.anchor = CutPoint(self.anchor.text + "".join(texts), self.anchor.position + sampled)
        self._ids, self.pending = ids, []
        return len(texts)

    def _read(self, texts: Sequence[str], sampled: int) -> tuple[int, ...] | None:
        """The path up to the end of the texts; None where they would be read as other tokens than were sampled.

        Hidden tokens can't be compared one by one: where some are among those sampled, their number has to do.
        """
        ids, start = self.vocabulary.encode(self.anchor.text + "".join(texts)), len(self._ids)
        if len(ids) != start + sampled or ids[:start] != self._ids:
            return None
        shown = [self.vocabulary.display_text(token) for token in ids[start:]]
        return ids if sampled != len(texts) or shown == list(texts) else None

    def _extended(self, text: str, ids: tuple[int, ...], token: str) -> tuple[int, ...] | None:
        """The path with one more token; None if the longer text tokenizes differently."""
        longer = self.vocabulary.encode(text + token)
        if len(longer) != len(ids) + 1 or longer[:-1] != ids:
            return None
        return longer if self.vocabulary.display_text(longer[-1]) == token else None


class CountedPath:
    """A cursor without a tokenizer: a cut is taken for good until the server's own count says otherwise.

    Weaker: another tokenisation with as many tokens isn't noticed.
    """

    def __init__(self, prompt: str, position: int = 0) -> None:
        self.anchor = CutPoint(prompt, position)
        self.pending: list[str] = []
        self.sampled = 0
        self._prompt: int | None = None  # tokens of the prompt, once the server told
        self._good = {self.anchor}  # cuts at which the server's count was right
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
        right = prompt_eval_count in (None, self.prompt_tokens_at(cut))  # a server that doesn't count refutes nothing
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
        return None  # the server's next count will tell

    def resync(self, texts: Sequence[str], sampled: int) -> int | None:
        self.pending, self.sampled, self._refuted = list(texts), sampled, False
        return len(texts)  # whether the cut there is good, the next request will tell

    @property
    def _end(self) -> CutPoint:
        return CutPoint(self.anchor.text + "".join(self.pending), self.anchor.position + self.sampled)


def retokenize_draft(text: str, draft: str, vocabulary: Tokenizer) -> list[str]:
    """A draft that follows `text`, in the target's tokens, for a draft model with another tokenizer.

    The last token is left out: with more text it might have been another. The draft ends before the first token
    that has no text of its own.
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
