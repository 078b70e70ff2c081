"""Prompt lookup (n-gram drafting without a model, Saxena 2023): proposes what followed the same tokens earlier."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from specollama.spec_decode.calibration import PROMPT_LOOKUP
from specollama.spec_decode.types import Draft, Token, VerifyResult

MAX_NGRAM = 8  # tokens: longest n-gram in the index; longer matches are compared token by token
_MAX_COMPARED = 64  # tokens
_AFTER_CHANGE = 2.5  # tokens
_SURE = 0.5  # of its first piece, from which a text is proposed where nothing else weighs what that is worth
_UNSPACED = "\u2e80-\u9fff\uac00-\ud7af"  # characters of scripts that put no spaces between words
_PIECE = re.compile(rf"\s*(?:[{_UNSPACED}]|(?:(?![{_UNSPACED}])\w)+|[^\w\s])|\s+$")


@dataclass(slots=True)
class NgramIndex:
    """Index of the text: the last position of each n-gram of 1 to MAX_NGRAM tokens.

    Adding a token and finding the longest matching suffix take constant time in the length of the text.
    """

    tokens: list[int] = field(default_factory=list)
    _seen: dict[tuple[int, ...], int] = field(default_factory=dict)  # n-gram: the position after it

    def append(self, token: int) -> None:
        """Add a token. The n-grams that end before it enter the index only now, so that none matches itself."""
        end = len(self.tokens)
        for length in range(1, min(MAX_NGRAM, end) + 1):
            self._seen[tuple(self.tokens[end - length : end])] = end
        self.tokens.append(token)

    def find(self) -> tuple[int, int]:
        """Position after the earlier occurrence of the longest matching suffix, and its length; 0, 0 for none."""
        end = len(self.tokens)
        for length in range(min(MAX_NGRAM, end), 0, -1):
            place = self._seen.get(tuple(self.tokens[end - length : end]))
            if place is not None:
                return place, self._matched(place, length)
        return 0, 0

    def _matched(self, place: int, length: int) -> int:
        """How many tokens before the place are those before the end, some of which are known to be."""
        end = len(self.tokens)
        while length < min(place, _MAX_COMPARED) and self.tokens[place - length - 1] == self.tokens[end - length - 1]:
            length += 1
        return length


def match_confidence(matched: float) -> float:
    """Confidence (0 to 1) of a proposal after a match of so many tokens: a first guess that calibration corrects."""
    return 0.94 * (1 - 1 / (1 + math.pow(matched / 2.5, 1.5)))


@dataclass(slots=True)
class CopyCursor:
    """Cursor at the place that the reply copies from. It moves with each token, also past a changed one.

    `streak`: tokens that were the same up to here. A changed one leaves little of it: what was copied may end there.
    """

    place: int = 0
    streak: float = 0.0

    def advance(self, index: NgramIndex, token: int) -> None:
        """Advance with a token of the reply, which the index already holds."""
        if self.streak:
            same = index.tokens[self.place] == token
            self.streak = self.streak + 1 if same else min(self.streak / 2, _AFTER_CHANGE)
            self.place += 1
        place, matched = index.find()
        if matched > self.streak or self.streak < 1:
            self.place, self.streak = place, float(matched)


class LookupDrafter:
    """Drafts by prompt lookup over the target's tokens.

    `tokens` tokenizes the text so far. `text` returns the text of a token id; "" ends a proposal.
    """

    name = PROMPT_LOOKUP

    def __init__(self, tokens: Callable[[str], Sequence[int]], text: Callable[[int], str]) -> None:
        self._tokens = tokens
        self._text = text
        self._index = NgramIndex()
        self._copying = CopyCursor()

    async def propose(self, text: str, count: int) -> Draft:
        index, written = self._index, self._tokens(text)
        for token in written[len(index.tokens) :]:
            index.append(token)
            self._copying.advance(index, token)
        place, streak = self._copying.place, self._copying.streak
        count = min(count, 1 + int(streak))  # no longer than what it rests on
        drafted: list[Token] = []
        while streak and len(drafted) < count:
            # Where the proposal runs into the end, what repeated itself is taken to go on repeating itself.
            token = index.tokens[place + len(drafted) % (len(index.tokens) - place)]
            if not (shown := self._text(token)):
                break
            drafted.append(Token(shown, None, token))
        sure = tuple(match_confidence(streak + ahead) for ahead in range(len(drafted)))
        return Draft(tuple(drafted), (None,) * len(drafted), self.name, sure)

    def learn(self, verdict: VerifyResult) -> None:
        """What was written it reads the next time."""


class TextLookupDrafter:
    """Prompt lookup without a tokenizer: over words and signs, the last of which may be still being written.

    It proposes where it is sure enough by itself, since a target that is reached by requests has no planner.
    """

    def __init__(self) -> None:
        self._read = 0  # characters
        self._numbers: dict[str, int] = {}  # pieces of text, each by the place where it is in `_texts`
        self._texts: list[str] = []
        self._written: list[int] = []
        self._lookup = LookupDrafter(lambda text: self._written, self._texts.__getitem__)

    async def propose(self, text: str, count: int) -> Draft:
        *whole, begun = _PIECE.findall(text[self._read :]) or [""]
        for piece in whole:
            self._note(piece)
        found = await self._lookup.propose(text, count + 1)
        if found.tokens and found.tokens[0].text == begun:  # it is whole by now
            found, begun = found.drop_first(1), ""
        texts = [token.text for token in found.tokens]
        if not texts or found.confidence[0] < _SURE or not texts[0].startswith(begun):
            return Draft()
        texts[0] = texts[0].removeprefix(begun)
        return Draft(tuple(map(Token, texts[:count])), source=found.source)

    def _note(self, piece: str) -> None:
        if piece not in self._numbers:
            self._numbers[piece] = len(self._texts)
            self._texts.append(piece)
        self._written.append(self._numbers[piece])
        self._read += len(piece)

    def learn(self, verdict: VerifyResult) -> None:
        """What was written it reads the next time."""
