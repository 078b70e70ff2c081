"""A toy model for the fake engines: a tokenizer of pieces, and a reply that is written down."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass, field

END, USER, ASSISTANT = 0, 1, 2
_SPECIAL = {END: b"<|end|>", USER: b"<|user|>", ASSISTANT: b"<|assistant|>"}
_WORDS = [" the", " cat", " sat", " on", " a", " mat", ".", " The", " dog", " and", " saw", " caf"]
_PARTS = [b"\xf0\x9f", b"\x99\x82", b"\xc3", b"\xa9"]
PIECES: dict[int, bytes] = dict(_SPECIAL)
PIECES.update({3 + place: word.encode() for place, word in enumerate(_WORDS)})
PIECES.update({20 + place: part for place, part in enumerate(_PARTS)})
PIECES.update({32 + byte: bytes([byte]) for byte in range(1, 256)})  # 33 to 287
IDS = {piece: token for token, piece in PIECES.items()}
LONGEST = max(map(len, PIECES.values()))


def tokens(text: str) -> list[int]:
    """Longest match, control tokens included."""
    raw, found, place = text.encode(), list[int](), 0
    while place < len(raw):
        length = next(size for size in range(LONGEST, 0, -1) if raw[place : place + size] in IDS)
        found.append(IDS[raw[place : place + length]])
        place += length
    return found


def text(ids: Sequence[int], *, special: bool = True) -> str:
    pieces = (PIECES[token] for token in ids if special or token not in _SPECIAL)
    return b"".join(pieces).decode("utf-8", "replace")


def prompt(messages: Sequence[dict[str, str]]) -> str:
    return "".join(f"<|{m['role']}|>{m['content']}" for m in messages) + "<|assistant|>"


STORY = " The cat sat on the mat. The cat sat on the mat. The cat sat on a dog and the mat."


@dataclass
class Toy:
    """Writes `reply`, then ends. Off the reply's path it writes dots; above temperature 0 it draws a dot now and then.

    A draw is a function of the seed and the place, where a seed is given.
    """

    reply: str = STORY
    parts: list[int] = field(default_factory=list)  # of a character, after the reply
    unseeded: int = 0

    @property
    def written(self) -> list[int]:
        return [*tokens(self.reply), *self.parts, END]

    def next(self, context: Sequence[int], temperature: float = 0.0, seed: int | None = None) -> int:
        so_far = list(context)
        so_far = so_far[len(so_far) - so_far[::-1].index(ASSISTANT) :] if ASSISTANT in so_far else so_far
        place = len(so_far)
        best = self.written[place] if so_far == self.written[:place] and place < len(self.written) else IDS[b"."]
        if temperature <= 0:
            return best
        if seed is None:
            self.unseeded += 1
            seed = self.unseeded
        return IDS[b"!"] if hashlib.sha256(f"{seed} {place}".encode()).digest()[0] < 40 else best

    def logprobs(self, context: Sequence[int]) -> list[tuple[int, float]]:
        """The two best."""
        best = self.next(context)
        return [(best, -0.1), (IDS[b"?"], -2.5)]

    def run(self, context: Sequence[int], limit: int, temperature: float = 0.0, seed: int | None = None) -> list[int]:
        """A continuation, its end included."""
        drawn = list[int]()
        while len(drawn) < limit and END not in drawn:
            drawn.append(self.next([*context, *drawn], temperature, seed))
        return drawn
