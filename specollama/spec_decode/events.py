"""Event types of a reply, and the computation of its decoding rate."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from itertools import takewhile
from typing import Any

from specollama.spec_decode.metrics import Stats
from specollama.spec_decode.types import DoneReason, Origin, Token


@dataclass(frozen=True, slots=True)
class Status:
    """Whether speculation is on, with the method or the reason: one line for the user."""

    on: bool
    detail: str

    def __str__(self) -> str:
        return f"speculation: {'on' if self.on else 'off'} ({self.detail})"


@dataclass(frozen=True, slots=True)
class Text:
    """A piece of the reply: the text of one token, or of several after text was held back for a stop string."""

    text: str
    origin: Origin
    round: int = 0  # the first is 1; 0 outside rounds
    logprob: float | None = None
    top: tuple[Token, ...] = ()  # the target's most probable tokens at this position; empty if unknown
    thinking: bool = False  # part of the model's thinking, not of its answer
    confidence: float | None = None  # the drafter's confidence at this position, 0 to 1; None if unknown


@dataclass(frozen=True, slots=True)
class ToolCalls:
    """Tool calls of the target, in Ollama's format."""

    calls: tuple[Mapping[str, Any], ...]


@dataclass(frozen=True, slots=True)
class Done:
    """The last event of a reply."""

    reason: DoneReason
    stats: Stats


Event = Status | Text | ToolCalls | Done
"""Order in a reply: Status (again if it changes), then Text or ToolCalls, and one Done at the end."""


def first_burst(rounds: Iterable[int]) -> int:
    """Number of tokens in the first burst of a reply. `rounds`: the round of each token, in order.

    A burst is the tokens that one round emitted, or a single token outside rounds (round 0).
    """
    rest = iter(rounds)
    first = next(rest, None)
    if first is None:
        return 0
    return 1 + (sum(1 for _ in takewhile(lambda each: each == first, rest)) if first else 0)


def decode_rate(tokens: int, burst: int, seconds: float) -> float | None:
    """Decoding rate in tokens per second; None if there is no token after the first burst.

    The rate counts the tokens after the first burst and the `seconds` after it. The time before the first burst is
    prefill, so that counting the burst's own tokens would overstate the rate.
    """
    later = tokens - burst
    return later / seconds if later > 0 and seconds > 0 else None
