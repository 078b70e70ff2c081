"""Counters of a reply. Rates are derived from the raw counts on access.

Names and meanings are those of design section 1; vLLM's counters `num_drafts`, `num_draft_tokens` and
`num_accepted_tokens` are `rounds`, `drafted` and `accepted` here.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from statistics import median

from specollama.spec_decode.types import Origin, RoundRecord, Route, VerifyResult

_FEWEST_PLAIN = 3  # plain steps from which their median is believed


@dataclass(frozen=True, slots=True)
class Forecast:
    """Forecast probability that a drafted token is accepted, given its predecessors were; and the outcome."""

    probability: float
    accepted: bool


@dataclass(slots=True)
class ReplyStepTimes:
    """The times of a reply's rounds, and what its own plain steps say that plain decoding would have taken.

    The first round is left out, since it reads the prompt. So is what a drafter took before a plain step: plain
    decoding has none.
    """

    tokens: int = 0  # emitted by the timed rounds
    spent: float = 0.0  # seconds that they took, drafting included
    plain: list[float] = field(default_factory=list)  # seconds of each step of the target alone
    _begun: bool = False

    def add(self, done: RoundRecord) -> None:
        """Count one round."""
        begun, self._begun = self._begun, True
        if not begun:
            return
        self.tokens += len(done.result.emitted)
        self.spent += done.draft_seconds + done.score_seconds
        if not done.result.drafted and len(done.result.emitted) == 1:
            self.plain.append(done.score_seconds)

    @property
    def gain(self) -> float | None:
        """Times the speed of plain decoding, estimated; None without some plain steps, or where nothing else was done.

        The median of the plain steps stands for all: one slow step isn't the target's speed.
        """
        if len(self.plain) < _FEWEST_PLAIN or self.tokens == len(self.plain) or not self.spent:
            return None
        return median(self.plain) * self.tokens / self.spent


@dataclass(slots=True)
class Stats:
    """Durations in nanoseconds, counts in tokens unless said otherwise."""

    route: Route = Route.PLAIN
    reason: str = ""  # why nothing was drafted; empty while speculation is on
    notices: list[str] = field(default_factory=list)  # notices for the user, one line each

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

    draft_requests: int = 0  # calls of a drafter, prompt lookup included
    rows: int = 0  # rows requested from the target
    extensions: int = 0  # requests that were issued again with a larger num_predict

    prompt_eval_count: int = 0  # tokens of the prompt; 0 if unknown
    prompt_read: int = 0  # tokens of the prompt that were prefilled; the rest was in the KV cache
    eval_count: int = 0  # tokens of the reply, its end included
    total_duration: int = 0  # from the request to the last token, rendering included
    first_token_duration: int = 0  # from the request to the first text
    draft_duration: int = 0  # waiting for drafts
    score_duration: int = 0  # waiting for the target

    def record(self, verdict: VerifyResult, forecast: Sequence[float] = ()) -> None:
        """Count one round. Without a draft it is no round, and its tokens count as plain.

        `forecast`: probability that each drafted token is accepted, given its predecessors are.
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
        """Mean forecast acceptance probability of the tested tokens; None without forecasts."""
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
