"""Decides whether to draft, how much, and how much of the draft to verify, from costs and acceptance probabilities.

Costs are converted to tokens at the decoding rate: plain, or of drafting where that is higher. A conservative
bandit (Wu et al. 2016): what isn't known to pay is tried only while the reply, were all of it lost, would still be
nearly as fast as plain. Pure: times come in, decisions go out.
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

_SIZES = (1, 2, 3, 4, 6, 8, 12, 16, 24, 32)  # tokens in the drafts that are compared
_STATS_RATE = 0.08  # how fast the seconds of a drafted token follow the machine, and what lookup brings the text
_IDLE_ROUNDS_BEFORE_RETRY = 8  # drafts of others, after which a model may be tried again
_EXPLORATION_SHARE = 0.015  # of the time: drafting where it seems not to pay, so that a change is noticed
_MAX_EXPLORATION = 8.0  # plain tokens' time: the most that is saved up for that
_MARGIN = 1.02  # of the plain rate, from which drafting is taken to pay
_DOUBTED = 24.0  # tested tokens, from which a drafter that seems not to pay is tried only now and then
_MIN_TESTED = 6.0  # tested tokens, from which a drafter's calibration is trusted
_MAX_LOSS = 0.025  # of the reply's plain time, that may be lost
_MAX_FIRST_LOSS = 0.065  # the same for a drafter of which nothing is known
_REPAID = 0.5  # of what drafting almost surely saves, that reading may cost beyond what may be lost
_ALMOST_SURELY = 0.9  # probability that a reply is long enough for reading to be repaid
_PREFILL_SHARE = 0.25  # of what drafting almost surely saves, that a draft model may spend on reading
_MIN_PREFILL_WINDOW = 64  # tokens
_UNLIMITED = 1 << 30  # tokens


@dataclass(frozen=True, slots=True)
class DraftForecast:
    """Expected gain and cost of one drafter's drafts, while the reply goes on as it does now.

    `gained_tokens` and `extra_seconds`: tokens and seconds beyond those of a plain pass; `tokens_per_second`: tokens a
    second that come of it. `run_lengths[i][s]`: the expected length of a run of at most `_SIZES[i]` tokens under shift
    s, given its first token.
    """

    gained_tokens: float
    extra_seconds: float
    tokens_per_second: float
    run_lengths: list[list[float]]


@dataclass(slots=True)
class Planner:
    """The lookahead that pays (a lookahead.Lookahead), for one reply.

    `target_cost`: seconds of a pass of the target by its tokens; `drafters`: the drafters by name; `token_limit`:
    tokens that the reply has at most. `fixed_lengths`: lengths by round, whatever they bring, the last one for all
    later rounds. Under AcceptanceMethod.REJECTION all that was drafted is sent: what is left out may not depend on
    later tokens.
    """

    target_cost: CostCurve
    drafters: dict[str, DrafterStats]
    rule: AcceptanceMethod
    reply_lengths: ReplyLengths = field(default_factory=ReplyLengths)
    token_limit: int | None = None
    draft_limit: int = MAX_DRAFT_TOKENS
    fixed_lengths: tuple[int, ...] = ()
    _plain_seconds: float = (
        0.0  # seconds that the tokens so far would have taken without drafts; the first doesn't count
    )
    _seconds_spent: float = 0.0  # seconds that they took
    _lookup_gain: float = 0.0  # tokens that lookup is expected to gain in a round
    _tokens_written: int = 0
    _rounds: int = 0
    _current_drafter: str = ""  # the model that is to draft, or did last
    _budget: float = 0.0  # seconds that the present draft may lose, where its drafter isn't known yet
    _forecasts: dict[str, DraftForecast] = field(default_factory=dict)  # since the last round
    _reach_probabilities: list[float] = field(default_factory=list)  # by shift: the probability of the draft so far
    _sure: tuple[float, ...] = ()  # the confidences that it is for

    def __str__(self) -> str:
        return schedule_text(self.fixed_lengths) if self.fixed_lengths else f"0-{self.draft_limit}"

    def max_draft_tokens(self) -> int:
        """The most tokens to draft. The target alone decodes the first token, so that nothing delays it."""
        if self.fixed_lengths:
            return self.fixed_lengths[min(self._rounds, len(self.fixed_lengths) - 1)]
        return self.draft_limit if self._tokens_written else 0

    def pick_drafter(self, unread: Mapping[str, int], *, instead: float = 0.0) -> str | None:
        """The model that should draft now, or None: the one with the largest expected gain, now and then another.

        `unread`: tokens that each would have to read first; `instead`: tokens that may be gained without it.
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
        """Expected loss in seconds when another model than the best one drafts."""
        mine, its = self.draft_forecast(best), self.draft_forecast(other)
        return max(
            0.0,
            (mine.gained_tokens - its.gained_tokens) / self._seconds_to_tokens - mine.extra_seconds + its.extra_seconds,
        )

    def _pays_off(self, name: str, unread: int, instead: float) -> bool:
        """Whether a model that must prefill `unread` tokens first should draft now.

        `instead`: tokens that may be gained without it. What it reads serves all drafts to come.
        """
        source, outlook = self.drafters[name], self.draft_forecast(name)
        reading = source.prefill_seconds_per_token * max(0, unread - 1)
        pays = self._pays(name)
        self._budget = self._loss_budget(name) - reading
        if not self._is_calibrated(source):
            return instead <= 0 and self._spend_exploration(name, unread, self._seconds_of_one_token(source), owed=True)
        if pays:
            return (
                outlook.gained_tokens - self._seconds_to_tokens * outlook.extra_seconds >= instead
                and self._repays_prefill(name, reading)
            )
        owed = source.calibration.tested < _DOUBTED
        return instead <= 0 and self._spend_exploration(name, unread, self._seconds_of_one_token(source), owed=owed)

    def _pays(self, name: str) -> bool:
        return self.draft_forecast(name).tokens_per_second > _MARGIN / self.target_cost(1)

    def _seconds_of_one_token(self, source: DrafterStats) -> float:
        """Seconds that a draft of one token takes."""
        return source.decode_seconds + self.target_cost(2) - self.target_cost(1)

    def _repays_prefill(self, name: str, reading: float) -> bool:
        """Whether the rest of the reply repays a prefill of so many seconds: on average, and almost surely."""
        average, sure = self._expected_savings(name)
        small = reading < self.target_cost(1)
        return average > reading and (small or _REPAID * sure + self._loss_budget(name) >= reading)

    def _expected_savings(self, name: str) -> tuple[float, float]:
        """Seconds that drafting saves in the rest of the reply: on average, and almost surely.

        What is drafted beyond the end brings nothing: the last round doesn't count.
        """
        saved, last = self._saved_per_token(name), self.draft_forecast(name).gained_tokens
        average = self.reply_lengths.expected_tokens(self._tokens_written, self.token_limit)
        sure = self.reply_lengths.quantile_tokens(self._tokens_written, self.token_limit, _ALMOST_SURELY)
        return saved * max(0.0, average - last), saved * max(0.0, sure - last)

    def _saved_per_token(self, name: str) -> float:
        """Seconds per token that the model's drafts save beyond what prompt lookup saves."""
        plain, outlook = self.target_cost(1), self.draft_forecast(name)
        gain = outlook.gained_tokens - outlook.extra_seconds / plain
        beyond = max(0.0, 1 - self._lookup_gain / gain) if gain > 0 else 0.0
        return beyond * max(0.0, plain - 1 / outlook.tokens_per_second)

    def _loss_budget(self, name: str) -> float:
        """Seconds that may be lost now while the reply, if it ended then, would be hardly slower than plain."""
        source = self.drafters[name]
        hoped = not self._is_calibrated(source) and self._pays(name)
        extra = min(source.calibration.spare * self.target_cost(1), (_MAX_FIRST_LOSS - _MAX_LOSS) * self._plain_seconds)
        return (1 + _MAX_LOSS) * self._plain_seconds + hoped * extra - self._seconds_spent

    def prefill_window(self, name: str) -> int:
        """Tokens that are worth prefilling before a first draft. A draft model reads only the end of a longer text."""
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
        """Whether to spend so many seconds to see if drafting pays by now. `owed`: even if none were saved up."""
        source = self.drafters[name]
        seconds += source.prefill_seconds_per_token * max(0, unread - 1)
        tokens = seconds / self.target_cost(1)
        if seconds > self._loss_budget(name) or (tokens > source.calibration.spare and not owed):
            return False
        source.calibration.spare = max(0.0, source.calibration.spare - tokens)
        return True

    def observe_unused(self, draft: Draft, verdict: VerifyResult) -> None:
        """Learn from a draft that was not sent: its positions have outcomes, too."""
        self._observe(self.drafters[draft.source], draft, verdict)

    def should_extend(self, draft: Draft) -> bool:
        """Whether to draft one more token after those."""
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
        """Joint probability of each shift and of the whole growing draft being accepted."""
        known = len(self._sure)
        if not known or draft.confidence[:known] != self._sure:
            self._reach_probabilities, known = source.shift_weights, 0
        self._reach_probabilities = source.joint_accept_probs(draft.confidence[known:], self._reach_probabilities)
        self._sure = draft.confidence
        return self._reach_probabilities

    def _is_calibrated(self, source: DrafterStats) -> bool:
        return source.calibration.tested >= _MIN_TESTED

    def verify_length(self, draft: Draft) -> int:
        """The number of drafted tokens to verify: the prefix that gains most."""
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
        """Net gain in tokens of the best prefix of a draft; the time spent on drafting is sunk."""
        return max(self._gains(draft), default=0.0)

    def learn(self, round: RoundRecord) -> None:
        draft, emitted = round.draft, len(round.result.emitted)
        if self._tokens_written:
            self._plain_seconds += (emitted + round.result.end) * self.target_cost(1)
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
        self._sure = ()

    def reply_ended(self) -> None:
        """The reply ended by itself."""
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
        """Tokens that a second is worth."""
        plain = 1 / self.target_cost(1)
        return (
            max(plain, self.draft_forecast(self._current_drafter).tokens_per_second)
            if self._current_drafter in self.drafters
            else plain
        )

    def draft_forecast(self, name: str) -> DraftForecast:
        """A drafter's forecast. Dinkelbach's iteration (1967) finds the decoding rate that values its time."""
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
        """Tokens and seconds that a draft adds beyond its first token's time, where a second is worth so many tokens.

        The first token is of any kind that the source drafts; then the draft is given up, or as long as is best.
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
        """The probability that the draft is accepted up to and including each token."""
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
    """Tell a planner that its reply ended by itself, not at a limit."""
    if isinstance(lookahead, Planner) and isinstance(event, Done) and event.reason is DoneReason.STOP:
        lookahead.reply_ended()
