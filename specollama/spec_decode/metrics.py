"""Counts of a reply: raw while it runs, rates derived where they are read.

Names and meanings are those of design section 1; vLLM's counters `num_drafts`, `num_draft_tokens` and
`num_accepted_tokens` are `rounds`, `drafted` and `accepted` here.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import takewhile
from typing import Any

from specollama.spec_decode.types import DoneReason, Origin, Route, Token, Verdict


@dataclass(frozen=True, slots=True)
class Forecast:
    """How likely a drafted token was held to be accepted, if those before it were, and whether it was."""

    probability: float
    accepted: bool


@dataclass(slots=True)
class Stats:
    """Durations in nanoseconds, counts in tokens unless said otherwise."""

    route: Route = Route.PLAIN
    reason: str = ""  # why nothing was drafted; empty while speculation is on
    notices: list[str] = field(default_factory=list)  # what the user has to know of this reply, a line each

    rounds: int = 0  # rounds
    drafted: int = 0
    tested: int = 0
    accepted: int = 0
    recovered: int = 0
    bonus: int = 0
    emitted: int = 0  # by rounds: accepted, recovered and bonus, in the target's tokens
    plain: int = 0
    accepted_at: list[int] = field(default_factory=list)  # by place in the draft, the first at index 0

    forecasts: list[Forecast] = field(default_factory=list)  # of tested tokens, where the drafter's confidence is known

    draft_requests: int = 0  # times that a drafter was asked, lookup too
    rows: int = 0  # rows asked of the target
    extensions: int = 0  # requests that were issued again with a larger num_predict

    prompt_eval_count: int = 0  # tokens of the prompt, as far as they are known
    prompt_read: int = 0  # of them, those that had to be read: the rest was still there from an earlier turn
    eval_count: int = 0  # tokens of the reply, its end included
    total_duration: int = 0  # from the request to the last token, rendering included
    first_token_duration: int = 0  # from the request to the first text
    draft_duration: int = 0  # waiting for drafts
    score_duration: int = 0  # waiting for the target

    def record(self, verdict: Verdict, forecast: Sequence[float] = ()) -> None:
        """Count one round. Where nothing was drafted there was none: its token is a plain one.

        `forecast`: how likely each drafted token was held to be accepted, if those before it were.
        """
        if not verdict.drafted:
            self.plain += len(verdict.emitted)
            return
        self.rounds += 1
        self.drafted += verdict.drafted
        self.tested += verdict.tested
        self.accepted += verdict.accepted
        grow = verdict.accepted - len(self.accepted_at)
        self.accepted_at.extend([0] * grow)
        for place in range(verdict.accepted):
            self.accepted_at[place] += 1
        for place, probability in enumerate(forecast[: verdict.tested]):
            self.forecasts.append(Forecast(probability, place < verdict.accepted))
        self.emitted += len(verdict.emitted)
        for emitted in verdict.emitted:
            self.recovered += emitted.origin is Origin.RECOVERED
            self.bonus += emitted.origin is Origin.BONUS

    @property
    def acceptance_rate(self) -> float | None:
        """Accepted over tested; None before anything was tested."""
        return self.accepted / self.tested if self.tested else None

    @property
    def predicted_rate(self) -> float | None:
        """What `acceptance_rate` was held to be; None where nothing was forecast."""
        return sum(one.probability for one in self.forecasts) / len(self.forecasts) if self.forecasts else None

    @property
    def draft_efficiency(self) -> float | None:
        """Accepted over drafted (what vLLM's counters give); None before anything was drafted."""
        return self.accepted / self.drafted if self.drafted else None

    @property
    def mean_accepted_length(self) -> float | None:
        """Tokens emitted per round, recovered or bonus included; None without rounds."""
        return self.emitted / self.rounds if self.rounds else None

    @property
    def tokens_per_second(self) -> float | None:
        """Tokens of the reply over `total_duration`; None before the reply has ended."""
        return self.eval_count / (self.total_duration / 1e9) if self.total_duration else None


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
