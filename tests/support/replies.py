"""Replies as a benchmark sees them, made by hand."""

from __future__ import annotations

from collections.abc import Iterable

from specollama.spec_decode.events import Done, Text
from specollama.spec_decode.metrics import Stats
from specollama.spec_decode.types import DoneReason, Origin, Token
from specollama.tools.bench.reply_timing import ReplyTiming
from specollama.tools.bench.runner import Measurement

MS = 1_000_000


def told(text: str, round: int = 0, **top: float) -> Text:
    """A piece of text, and the most probable tokens at its place."""
    return Text(text, Origin.PLAIN, round, top=tuple(Token(name, value) for name, value in top.items()))


def timed(
    pieces: Iterable[tuple[int, Text]], end: int, *, tokens: int, reason: str = "length", **counts: int
) -> ReplyTiming:
    """A reply whose pieces came at so many milliseconds."""
    reply = ReplyTiming(began=0)
    for moment, piece in pieces:
        reply.observe(piece, moment * MS)
    reply.observe(Done(DoneReason(reason), Stats(eval_count=tokens, **counts)), end * MS)
    return reply


def measured(
    side: str, words: str, step: int = 10, *, question: str = "a", kind: str = "code", tokens: int = 0, **more: object
) -> Measurement:
    """A reply of one token a word and a step, in milliseconds."""
    pieces = [(step * number, told(f"{word} ")) for number, word in enumerate(words.split(), 1)]
    reply = timed(pieces, step * len(pieces), tokens=tokens or len(pieces), **more)  # type: ignore[arg-type]
    return Measurement(side, question, kind, 0, reply)
