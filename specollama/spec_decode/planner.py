"""Decides whether to draft, how many tokens to draft, and how many of them to verify, from costs and acceptance.

Costs in seconds are converted to tokens at the decoding rate: the plain rate, or the rate with drafts if it is higher.
The planner is a conservative bandit (Wu et al. 2016): it explores a drafter of unknown gain only within a loss budget,
so that the reply stays nearly as fast as plain decoding even if all drafts fail. It does no I/O and reads no clock.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from operator import mul

from specollama.spec_decode.calibration import MAX_DRAFT_TOKENS, DrafterStats, acceptance_outcomes, confidences_of
from specollama.spec_decode.cost_curve import CostCurve
from specollama.spec_decode.events import Done, Event
from specollama.spec_decode.lookahead import Lookahead, schedule_text
from specollama.spec_decode.reply_length import ReplyLengths
from specollama.spec_decode.types import AcceptanceMethod, DoneReason, Draft, RoundRecord, VerifyResult

_SIZES = (1, 2, 3, 4, 6, 8, 12, 16, 24, 32)  # draft lengths that are compared, in tokens
_STATS_RATE = 0.08  # smoothing factor of the averages of draft step time and prompt-lookup gain
_IDLE_ROUNDS_BEFORE_RETRY = 8  # rounds drafted by other drafters before an idle one is explored again
_EXPLORATION_SHARE = 0.015  # of the decoding time: spent on drafters that seem too slow, to notice a change
_MAX_EXPLORATION = 8.0  # upper limit of the exploration allowance, in plain decode steps
_MARGIN = 1.02  # drafting pays if its rate exceeds the plain rate by this factor
_DOUBTED = 24.0  # tested tokens; beyond these, a drafter that seems too slow is explored only within the allowance
_MIN_TESTED = 6.0  # tested tokens from which a drafter's calibration is trusted
_MAX_LOSS = 0.025  # fraction of the reply's plain decoding time that may be lost
_MAX_FIRST_LOSS = 0.065  # the same for an uncalibrated drafter
_REPAID = 0.5  # fraction of the almost certain savings that prefill may cost beyond the loss budget
_ALMOST_SURELY = 0.9  # probability that the reply is long enough to repay the prefill
_PREFILL_SHARE = 0.25  # fraction of the certain savings that a draft model may spend on prefill
_MIN_PREFILL_WINDOW = 64  # tokens
_UNLIMITED = 1 << 30  # tokens


@dataclass(frozen=True, slots=True)
class DraftForecast:
    """Long-run forecast of a drafter's rounds, if acceptance stays as it is now.

    `gained_tokens` and `extra_seconds`: tokens and seconds per round beyond a plain forward pass. `tokens_per_second`:
    the resulting decoding rate. `run_lengths[i][s]`: expected number of accepted tokens out of `_SIZES[i]` under shift
    s, given that the first one is accepted.
    """

    gained_tokens: float
    extra_seconds: float
    tokens_per_second: float
    run_lengths: list[list[float]]


@dataclass(slots=True)
class Planner:
    """Cost-based Lookahead (see lookahead.Lookahead) for one reply.

    `target_cost`: seconds of a target forward pass by its number of tokens. `drafters`: statistics by drafter name.
    `token_limit`: maximum tokens of the reply. `fixed_lengths`: forced draft lengths by round; the last one holds for
    all later rounds. Under AcceptanceMethod.REJECTION every drafted token is verified, because the choice of which
    tokens to drop must not depend on later tokens.
    """

    target_cost: CostCurve
    drafters: dict[str, DrafterStats]
    rule: AcceptanceMethod
    reply_lengths: ReplyLengths = field(default_factory=ReplyLengths)
    token_limit: int | None = None
    draft_limit: int = MAX_DRAFT_TOKENS
    fixed_lengths: tuple[int, ...] = ()
    _plain_seconds: float = 0.0  # estimated plain decoding time of the tokens after the first
    _seconds_spent: float = 0.0  # measured time of the same tokens
    _lookup_gain: float = 0.0  # tokens that prompt lookup is expected to gain in a round
    _tokens_written: int = 0
    _rounds: int = 0
    _current_drafter: str = ""  # the draft model of this round, or of the last one that drafted
    _budget: float = 0.0  # seconds that the present draft may lose, if its drafter is uncalibrated
    _forecasts: dict[str, DraftForecast] = field(default_factory=dict)  # cache, cleared after each round
    _reach_probabilities: list[float] = field(
        default_factory=list
    )  # by shift: joint probability that the whole draft so far is accepted
    _reach_confidences: tuple[float, ...] = ()  # the confidences for which _reach_probabilities holds

    def __str__(self) -> str:
        return schedule_text(self.fixed_lengths) if self.fixed_lengths else f"0-{self.draft_limit}"

    def max_draft_tokens(self) -> int:
        """Return 0 before the first token: the target decodes it alone, so that drafting does not delay it."""
        if self.fixed_lengths:
            return self.fixed_lengths[min(self._rounds, len(self.fixed_lengths) - 1)]
        return self.draft_limit if self._tokens_written else 0

    def pick_drafter(self, unread: Mapping[str, int], *, instead: float = 0.0) -> str | None:
        """Choose the draft model for this round: the one with the best forecast, or sometimes another to explore it.

        `unread`: tokens that each model must prefill first. `instead`: expected gain in tokens without a draft model.
        Returns None if no draft model is to draft.
        """
        self._lookup_gain += _STATS_RATE * (instead - self._lookup_gain)
        chosen = self._pick(unread, instead)
        self._current_drafter = chosen or self._current_drafter
        return chosen

    def _pick(self, unread: Mapping[str, int], instead: float) -> str | None:
        best = max(unread, key=lambda name: self.draft_forecast(name).tokens_per_second, default=None)
        if best is None:
            return None
        if self.fixed_lengths:
            return best if instead <= 0 else None
        other = max(
            (name for name in unread if name != best), key=lambda name: self.drafters[name].rounds_idle, default=best
        )
        if self.drafters[other].rounds_idle >= _IDLE_ROUNDS_BEFORE_RETRY and self._spend_exploration(
            other, unread[other], self._extra_seconds(best, other)
        ):
            return other
        return best if self._pays_off(best, unread[best], instead) else None

    def _extra_seconds(self, best: str, other: str) -> float:
        """Expected extra seconds of a draft by model `other`, compared with the model `best`."""
        mine, its = self.draft_forecast(best), self.draft_forecast(other)
        return max(
            0.0,
            (mine.gained_tokens - its.gained_tokens) / self._seconds_to_tokens - mine.extra_seconds + its.extra_seconds,
        )

    def _pays_off(self, name: str, unread: int, instead: float) -> bool:
        """Whether the model should draft now, if it must prefill `unread` tokens first.

        `instead`: expected gain in tokens without it. Later drafts reuse the prefilled KV cache.
        """
        source, outlook = self.drafters[name], self.draft_forecast(name)
        reading = source.prefill_seconds(unread)
        self._budget = self._loss_budget(name) - reading
        if not self._is_calibrated(source):
            return instead <= 0 and self._spend_exploration(name, unread, self._seconds_of_one_token(source), owed=True)
        if self._pays(name):
            return (
                outlook.gained_tokens - self._seconds_to_tokens * outlook.extra_seconds >= instead
                and self._repays_prefill(name, reading)
            )
        owed = source.calibration.tested < _DOUBTED
        return instead <= 0 and self._spend_exploration(name, unread, self._seconds_of_one_token(source), owed=owed)

    def _pays(self, name: str) -> bool:
        return self.draft_forecast(name).tokens_per_second > _MARGIN / self.target_cost(1)

    def _seconds_of_one_token(self, source: DrafterStats) -> float:
        """Seconds to draft one token and to verify it."""
        return source.decode_seconds + self.target_cost(2) - self.target_cost(1)

    def _repays_prefill(self, name: str, reading: float) -> bool:
        """Whether drafting saves more than the prefill costs (`reading`, seconds) in the rest of the reply.

        The savings are compared in expectation, and at the reply length that is reached almost surely.
        """
        average, sure = self._expected_savings(name)
        small = reading < self.target_cost(1)
        return average > reading and (small or _REPAID * sure + self._loss_budget(name) >= reading)

    def _expected_savings(self, name: str) -> tuple[float, float]:
        """Seconds that drafting saves in the rest of the reply: the expectation, and an almost certain lower bound.

        The last round is left out, because tokens drafted beyond the end of the reply gain nothing.
        """
        saved, last = self._saved_per_token(name), self.draft_forecast(name).gained_tokens
        average = self.reply_lengths.expected_tokens(self._tokens_written, self.token_limit)
        sure = self.reply_lengths.quantile_tokens(self._tokens_written, self.token_limit, _ALMOST_SURELY)
        return saved * max(0.0, average - last), saved * max(0.0, sure - last)

    def _saved_per_token(self, name: str) -> float:
        """Seconds saved per token, beyond the savings of prompt lookup."""
        plain, outlook = self.target_cost(1), self.draft_forecast(name)
        gain = outlook.gained_tokens - outlook.extra_seconds / plain
        beyond = max(0.0, 1 - self._lookup_gain / gain) if gain > 0 else 0.0
        return beyond * max(0.0, plain - 1 / outlook.tokens_per_second)

    def _loss_budget(self, name: str) -> float:
        """Seconds that may be lost now, so that a reply that ends here is hardly slower than plain decoding."""
        source = self.drafters[name]
        hoped = not self._is_calibrated(source) and self._pays(name)
        extra = min(source.calibration.spare * self.target_cost(1), (_MAX_FIRST_LOSS - _MAX_LOSS) * self._plain_seconds)
        return (1 + _MAX_LOSS) * self._plain_seconds + hoped * extra - self._seconds_spent

    def prefill_window(self, name: str) -> int:
        """Tokens worth prefilling before the first draft. Of a longer text the draft model reads only the end."""
        source, (average, sure) = self.drafters[name], self._expected_savings(name)
        if not self._is_calibrated(source):
            return _MIN_PREFILL_WINDOW
        seconds = _PREFILL_SHARE * min(average, sure)
        return (
            max(_MIN_PREFILL_WINDOW, int(seconds / source.prefill_seconds_per_token))
            if source.prefill_seconds_per_token > 0
            else _UNLIMITED
        )

    def _spend_exploration(self, name: str, unread: int, seconds: float, *, owed: bool = False) -> bool:
        """Whether exploration may cost `seconds` plus the prefill now; if so, take it from the drafter's allowance.

        `owed`: explore even if the allowance is used up (the loss budget still applies).
        """
        source = self.drafters[name]
        seconds += source.prefill_seconds(unread)
        tokens = seconds / self.target_cost(1)
        if seconds > self._loss_budget(name) or (tokens > source.calibration.spare and not owed):
            return False
        source.calibration.spare = max(0.0, source.calibration.spare - tokens)
        return True

    def observe_unused(self, draft: Draft, verdict: VerifyResult) -> None:
        """Update calibration from a draft that was not sent, by comparing it with the emitted tokens."""
        self._observe(self.drafters[draft.source], draft, verdict)

    def should_extend(self, draft: Draft) -> bool:
        """Whether to draft one more token after those of `draft`."""
        size = len(draft.tokens)
        if size >= self.draft_limit or self.fixed_lengths:
            return size < self.max_draft_tokens()
        source, outlook, price = self.drafters[draft.source], self.draft_forecast(draft.source), self._seconds_to_tokens
        lost = (size + 1) * source.decode_seconds + self.target_cost(size + 2) - self.target_cost(1)
        if not self._is_calibrated(source) and lost > self._budget:
            return False
        likely = list(map(mul, self._joint_probability(draft, source), source.future_accept_probs))
        for more, series in zip(_SIZES, outlook.run_lengths, strict=False):
            cost = more * source.decode_seconds + self.target_cost(size + more + 1) - self.target_cost(size + 1)
            if size + more <= self.draft_limit and sum(map(mul, likely, series)) > price * cost:
                return True
        return False

    def _joint_probability(self, draft: Draft, source: DrafterStats) -> list[float]:
        """By shift: the joint probability of the shift and the acceptance of every token of a growing draft."""
        known = len(self._reach_confidences)
        if not known or draft.confidence[:known] != self._reach_confidences:
            self._reach_probabilities, known = source.shift_weights, 0
        self._reach_probabilities = source.joint_accept_probs(draft.confidence[known:], self._reach_probabilities)
        self._reach_confidences = draft.confidence
        return self._reach_probabilities

    def _is_calibrated(self, source: DrafterStats) -> bool:
        return source.calibration.tested >= _MIN_TESTED

    def verify_length(self, draft: Draft) -> int:
        """Number of leading draft tokens with the highest net gain."""
        if (
            not draft.tokens
            or self.fixed_lengths
            or self.rule is AcceptanceMethod.REJECTION
            or len(draft.confidence) < len(draft.tokens)
        ):
            return len(draft.tokens)
        gains = [0.0, *self._gains(draft)]
        return max(range(len(gains)), key=gains.__getitem__)

    def accept_probabilities(self, draft: Draft) -> Sequence[float]:
        if draft.source not in self.drafters:
            return ()
        reached = [1.0, *self._accept_probabilities(draft)]
        return [after / before for before, after in pairwise(reached)]

    def net_gain(self, draft: Draft) -> float:
        """Net gain, in tokens, of the best prefix of a draft. Only the verification cost counts: drafting is over."""
        return max(self._gains(draft), default=0.0)

    def learn(self, round: RoundRecord) -> None:
        draft, emitted = round.draft, len(round.result.emitted)
        if self._tokens_written:
            # A pass over one token loses nothing, even where it takes longer than the cost curve says.
            estimate = (emitted + round.result.end) * self.target_cost(1)
            self._plain_seconds += estimate if round.result.drafted else round.score_seconds
            self._seconds_spent += round.draft_seconds + round.score_seconds
        if not round.prefilled_tokens and round.score_seconds > 0:
            self.target_cost.observe(round.result.drafted + 1, round.score_seconds)
        self.reply_lengths.observe_progress(self._tokens_written, self._tokens_written + emitted)
        self._tokens_written += emitted
        self._rounds += 1
        for source in self.drafters.values():
            source.calibration.spare = min(_MAX_EXPLORATION, source.calibration.spare + _EXPLORATION_SHARE * emitted)
        drafted = self.drafters.get(draft.source) if draft.tokens else None
        if drafted:
            self._observe_draft(drafted, round)
        for source in self.drafters.values():
            source.advance(emitted if source is not drafted else 0)
        self._forecasts.clear()
        self._reach_confidences = ()

    def reply_ended(self) -> None:
        """Record that the reply ended with its end of sequence or a stop string."""
        self.reply_lengths.observe_end(self._tokens_written)

    def _observe_draft(self, source: DrafterStats, round: RoundRecord) -> None:
        self._observe_costs(source, round.draft)
        self._observe(source, round.draft, round.result)
        for each in self.drafters.values():
            each.rounds_idle += each is not source
        source.rounds_idle = 0

    def _observe(self, source: DrafterStats, draft: Draft, verdict: VerifyResult) -> None:
        for confidence, accepted in acceptance_outcomes(draft, verdict):
            source.observe(confidence, accepted)

    def _observe_costs(self, source: DrafterStats, draft: Draft) -> None:
        for seconds in draft.step_seconds[1:]:
            source.decode_seconds += (
                _STATS_RATE * (seconds - source.decode_seconds) if source.decode_seconds else seconds
            )
        if draft.prefilled_tokens > 8 and draft.step_seconds:
            reading = max(0.0, draft.step_seconds[0] - source.decode_seconds) / draft.prefilled_tokens
            source.prefill_seconds_per_token += 0.5 * (reading - source.prefill_seconds_per_token)

    @property
    def _seconds_to_tokens(self) -> float:
        """Tokens per second at which costs are converted to tokens."""
        plain = 1 / self.target_cost(1)
        return (
            max(plain, self.draft_forecast(self._current_drafter).tokens_per_second)
            if self._current_drafter in self.drafters
            else plain
        )

    def draft_forecast(self, name: str) -> DraftForecast:
        """Return the drafter's forecast. Dinkelbach's iteration (1967) finds the rate that converts costs."""
        if name not in self._forecasts:
            source, plain = self.drafters[name], 1 / self.target_cost(1)
            sizes = [size for size in _SIZES if size <= self.draft_limit]
            series = [[(1 - p**size) / (1 - p) for p in source.future_accept_probs] for size in sizes]
            costs = [
                (size - 1) * source.decode_seconds + self.target_cost(size + 1) - self.target_cost(1) for size in sizes
            ]
            likely = list(map(mul, source.shift_weights, source.future_accept_probs))
            runs = [sum(map(mul, likely, each)) / sum(likely) for each in series]
            kinds, rate, brings, takes = source.token_classes(), plain, 0.0, 0.0
            for _ in range(3):
                brings, takes = self._expected_draft(kinds, list(zip(runs, costs, strict=True)), rate)
                takes += source.decode_seconds
                rate = max(plain, (1 + brings) / (self.target_cost(1) + takes))
            self._forecasts[name] = DraftForecast(brings, takes, rate, series)
        return self._forecasts[name]

    def _expected_draft(
        self, kinds: Sequence[tuple[float, float]], runs: Sequence[tuple[float, float]], price: float
    ) -> tuple[float, float]:
        """Expected tokens and seconds of a draft, beyond the time of its first token, at `price` tokens per second.

        The expectation runs over the class of the first token. Each class has its best draft length, or no draft.
        """
        brings = takes = 0.0
        for probability, share in kinds:
            gains = [probability * tokens - price * seconds for tokens, seconds in runs]
            best = max(gains)
            if best > 0 or self.rule is AcceptanceMethod.REJECTION:
                tokens, seconds = runs[gains.index(best)]
                brings += share * probability * tokens
                takes += share * seconds
        return brings, takes

    def _accept_probabilities(self, draft: Draft) -> list[float]:
        """For each drafted token: the probability that it and all tokens before it are accepted."""
        source, found = self.drafters[draft.source], list[float]()
        reached = source.shift_weights
        for confidence in confidences_of(draft):
            reached = source.joint_accept_probs((confidence,), reached)
            found.append(sum(reached))
        return found

    def _gains(self, draft: Draft) -> Iterable[float]:
        total, price = 0.0, self._seconds_to_tokens
        for size, reached in enumerate(self._accept_probabilities(draft), start=1):
            total += reached
            yield total - price * (self.target_cost(size + 1) - self.target_cost(1))


def report_reply_end(lookahead: Lookahead, event: Event) -> None:
    """Report a reply's natural end (not a token limit) to its planner, if `lookahead` is one."""
    if isinstance(lookahead, Planner) and isinstance(event, Done) and event.reason is DoneReason.STOP:
        lookahead.reply_ended()
