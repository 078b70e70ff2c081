"""The events that a reply is made of, and its decoding rate."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from itertools import takewhile
from typing import Any

from specollama.spec_decode.metrics import Stats
from specollama.spec_decode.types import DoneReason, Origin, Token


@dataclass(frozen=True, slots=True)
class Status:
    """Whether a reply is speculated, and how or why not: one line for the user."""

    on: bool
    detail: str

    def __str__(self) -> str:
        return f"speculation: {'on' if self.on else 'off'} ({self.detail})"


@dataclass(frozen=True, slots=True)
class Text:
    """A piece of the reply: the visible text of one token (held-back text may join several)."""

    text: str
    origin: Origin
    round: int = 0  # the first is 1; 0 outside rounds
    logprob: float | None = None
    top: tuple[Token, ...] = ()  # the target's most probable tokens at the place; empty where unknown
    thinking: bool = False  # part of the model's thinking, not of its answer
    confidence: float | None = None  # how sure the drafter was at the place, 0 to 1; None where it didn't say


@dataclass(frozen=True, slots=True)
class ToolCalls:
    """Calls of tools that the target asks for, as Ollama gives them."""

    calls: tuple[Mapping[str, Any], ...]


@dataclass(frozen=True, slots=True)
class Done:
    """The last event of a reply."""

    reason: DoneReason
    stats: Stats


Event = Status | Text | ToolCalls | Done
"""What a reply is made of, in order: Status (again when it changes), Text or ToolCalls, and one Done at the end."""


def first_burst(rounds: Iterable[int]) -> int:
    """How many of a reply's tokens came first, at one moment, given the rounds that they are of, in order.

    A burst is what one round settled, or one token outside rounds (round 0), which come one at a time.
    """
    rest = iter(rounds)
    first = next(rest, None)
    if first is None:
        return 0
    return 1 + (sum(1 for _ in takewhile(lambda each: each == first, rest)) if first else 0)


def decode_rate(tokens: int, burst: int, seconds: float) -> float | None:
    """Tokens per second of decoding; None where there is nothing to time.

    Those after the first burst, over the `seconds` from it on: the time before it is that of reading the prompt, and
    its own tokens would be a gift to a reply that begins with a long one.
    """
    later = tokens - burst
    return later / seconds if later > 0 and seconds > 0 else None
