"""A tokenizer small enough to see through: the longest piece first, over bytes."""

from __future__ import annotations

from collections import Counter

_WORDS = ("ab", "bc", "abc", "cd", " a", "//", "://", "http", "see", " see", "é", "bé", "<end>")
_FRAGMENTS = (b" \xe2\x80", b"a\xc3")  # print like " " and "a", but aren't
_CONTROL = "<end>"


class ToyVocabulary:
    """Every byte is a token, and so are some words, pieces that end inside a character, and a control token.

    Many sequences of its tokens are off the path: "a" followed by "b" would be read as "ab".
    """

    def __init__(self, words: tuple[str, ...] = _WORDS, fragments: tuple[bytes, ...] = _FRAGMENTS) -> None:
        words_only = [word.encode() for word in words]
        self.pieces = [bytes([byte]) for byte in range(256)] + words_only + list(fragments)
        self._longest = max(len(piece) for piece in self.pieces)
        self._ids = {piece: token for token, piece in enumerate(self.pieces)}
        self._shown = ["" if piece == _CONTROL.encode() else _whole(piece) for piece in self.pieces]
        times = Counter(self._shown)
        self.unambiguous_texts = frozenset(
            shown
            for shown, piece in zip(self._shown, self.pieces, strict=True)
            if shown and shown.encode() == piece and times[shown] == 1
        )

    def encode(self, text: str) -> tuple[int, ...]:
        raw, tokens, place = text.encode(), list[int](), 0
        while place < len(raw):
            ends = range(min(len(raw), place + self._longest), place, -1)
            piece = next(raw[place:end] for end in ends if raw[place:end] in self._ids)
            tokens.append(self._ids[piece])
            place += len(piece)
        return tuple(tokens)

    def display_text(self, token: int) -> str:
        return self._shown[token]

    def token(self, text: str) -> int:
        """The one token that is this text."""
        return self._ids[text.encode()]


def _whole(piece: bytes) -> str:
    """The characters that are whole at the beginning of a piece."""
    return piece.decode(errors="ignore")
