"""Whether to draft, how much, and how much of it to have scored: by what it costs and how likely it is accepted.

Costs are converted to tokens at the decoding rate: plain, or of drafting where that is higher. A conservative
bandit (Wu et al. 2016): what isn't known to pay is tried only while the reply, were all of it lost, would still be
nearly as fast as plain. Pure: times come in, decisions go out.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from operator import mul

from specollama.spec_decode.calibration import MOST, Source, outcomes, sureness
from specollama.spec_decode.cost_curve import CostCurve
from specollama.spec_decode.events import Done, Event
from specollama.spec_decode.lookahead import Lookahead, staged
from specollama.spec_decode.reply_length import ReplyLengths
from specollama.spec_decode.types import DoneReason, Draft, Round, Rule, Verdict

_SIZES = (1, 2, 3, 4, 6, 8, 12, 16, 24, 32)  # tokens in the drafts that are compared
_RECENT = 0.08  # how fast the seconds of a drafted token follow the machine, and what lookup brings the text
_RESTED = 8  # drafts of others, after which a model may be tried again
_EXPLORED = 0.015  # of the time: drafting where it seems not to pay, so that a change is noticed
_SPARED = 8.0  # plain tokens' time: the most that is saved up for that
_MARGIN = 1.02  # of the plain rate, from which drafting is taken to pay
_DOUBTED = 24.0  # tested tokens, from which a drafter that seems not to pay is tried only now and then
_KNOWN = 6.0  # tested tokens, from which a drafter's calibration is trusted
_RISK = 0.025  # of the reply's plain time, that may be lost
_FIRST_RISK = 0.065  # the same for a drafter of which nothing is known
_REPAID = 0.5  # of what drafting almost surely saves, that reading may cost beyond what may be lost
_SURE = 0.9  # probability that a reply is long enough for reading to be repaid
_READING = 0.25  # of what drafting almost surely saves, that a draft model may spend on reading
_FEWEST_READ = 64  # tokens
_UNLIMITED = 1 << 30  # tokens


@dataclass(frozen=True, slots=True)
class Outlook:
    """What drafts of one source do in the long run, as long as the reply goes on as it does now.

    `brings` and `takes`: tokens and seconds beyond those of a plain pass; `rate`: tokens a second that come of it.
    `series[i][s]`: the expected length of a run of at most `_SIZES[i]` tokens under shift s, given its first token.
    """

    brings: float
    takes: float
    rate: float
    series: list[list[float]]


@dataclass(slots=True)
class Planner:
    """The lookahead that pays (lookahead.Lookahead), for one reply.

    `target`: seconds of a pass of the target by its tokens; `sources`: the drafters by name; `limit`: tokens that the
    reply has at most. `forced`: lengths by round, whatever they bring, the last one for all later rounds. Under
    Rule.REJECTION all that was drafted is sent: what is left out may not depend on later tokens.
    """

    target: CostCurve
    sources: dict[str, Source]
    rule: Rule
    lengths: ReplyLengths = field(default_factory=ReplyLengths)
    limit: int | None = None
    most: int = MOST
    forced: tuple[int, ...] = ()
    _plain: float = 0.0  # seconds that the tokens so far would have taken without drafts; the first doesn't count
    _spent: float = 0.0  # seconds that they took
    _instead: float = 0.0  # tokens that lookup is expected to gain in a round
    _written: int = 0
    _rounds: int = 0
    _drafting: str = ""  # the model that is to draft, or did last
    _budget: float = 0.0  # seconds that the present draft may lose, where its drafter isn't known yet
    _outlooks: dict[str, Outlook] = field(default_factory=dict)  # since the last round
    _reached: list[float] = field(default_factory=list)  # by shift: the probability of the draft so far
    _sure: tuple[float, ...] = ()  # the confidences that it is for

    def __str__(self) -> str:
        return staged(self.forced) if self.forced else f"0-{self.most}"

    def next(self) -> int:
        """The first token comes from the target alone: nothing delays it."""
        if self.forced:
            return self.forced[min(self._rounds, len(self.forced) - 1)]
        return self.most if self._written else 0

    def choose(self, unread: Mapping[str, int], *, instead: float = 0.0) -> str | None:
        """The model that is to draft now, if any: the one of which most is hoped for, now and then another.

        `unread`: tokens that each would have to read first; `instead`: tokens that may be gained without it.
        """
        self._instead += _RECENT * (instead - self._instead)
        chosen = self._chosen(unread, instead)
        self._drafting = chosen or self._drafting
        return chosen

    def _chosen(self, unread: Mapping[str, int], instead: float) -> str | None:
        best = max(unread, key=lambda name: self.outlook(name).rate, default=None)
        if best is None:
            return None
        if self.forced:
            return best if instead <= 0 else None
        other = max((name for name in unread if name != best), key=lambda name: self.sources[name].rested, default=best)
        if self.sources[other].rested >= _RESTED and self._explore(other, unread[other], self._lost(best, other)):
            return other
        return best if self._worth(best, unread[best], instead) else None

    def _lost(self, best: str, other: str) -> float:
        """Seconds by which a draft of another model than the best is expected to be dearer."""
        mine, its = self.outlook(best), self.outlook(other)
        return max(0.0, (mine.brings - its.brings) / self._price - mine.takes + its.takes)

    def _worth(self, name: str, unread: int, instead: float) -> bool:
        """Whether to let a model draft now, which has to read so many tokens first.

        `instead`: tokens that may be gained without it. What it reads serves all drafts to come.
        """
        source, outlook = self.sources[name], self.outlook(name)
        reading = source.reading * max(0, unread - 1)
        pays = self._pays(name)
        self._budget = self._affordable(name) - reading
        if not self._trusted(source):
            return instead <= 0 and self._explore(name, unread, self._one(source), owed=True)
        if pays:
            return outlook.brings - self._price * outlook.takes >= instead and self._repaid(name, reading)
        owed = source.calibration.tested < _DOUBTED
        return instead <= 0 and self._explore(name, unread, self._one(source), owed=owed)

    def _pays(self, name: str) -> bool:
        return self.outlook(name).rate > _MARGIN / self.target(1)

    def _one(self, source: Source) -> float:
        """Seconds that a draft of one token takes."""
        return source.step + self.target(2) - self.target(1)

    def _repaid(self, name: str, reading: float) -> bool:
        """Whether drafting saves so many seconds in what is still to come: on average, and almost surely."""
        average, sure = self._savings(name)
        small = reading < self.target(1)
        return average > reading and (small or _REPAID * sure + self._affordable(name) >= reading)

    def _savings(self, name: str) -> tuple[float, float]:
        """Seconds that drafting saves in what is still to come: on average, and almost surely.

        What is drafted beyond the end brings nothing: the last round doesn't count.
        """
        saved, last = self._saved(name), self.outlook(name).brings
        average = self.lengths.expected(self._written, self.limit)
        sure = self.lengths.at_least(self._written, self.limit, _SURE)
        return saved * max(0.0, average - last), saved * max(0.0, sure - last)

    def _saved(self, name: str) -> float:
        """Seconds a token that drafting saves beyond what lookup does."""
        plain, outlook = self.target(1), self.outlook(name)
        gain = outlook.brings - outlook.takes / plain
        beyond = max(0.0, 1 - self._instead / gain) if gain > 0 else 0.0
        return beyond * max(0.0, plain - 1 / outlook.rate)

    def _affordable(self, name: str) -> float:
        """Seconds that may be lost now, for the reply to be hardly slower than plain were it to end then."""
        source = self.sources[name]
        hoped = not self._trusted(source) and self._pays(name)
        extra = min(source.calibration.spare * self.target(1), (_FIRST_RISK - _RISK) * self._plain)
        return (1 + _RISK) * self._plain + hoped * extra - self._spent

    def window(self, name: str) -> int:
        """Tokens that are worth reading before a first draft: of a longer text a draft model reads only the end."""
        source, (average, sure) = self.sources[name], self._savings(name)
        if not self._trusted(source):
            return _FEWEST_READ
        seconds = _READING * min(average, sure)
        return max(_FEWEST_READ, int(seconds / source.reading)) if source.reading > 0 else _UNLIMITED

    def _explore(self, name: str, unread: int, seconds: float, *, owed: bool = False) -> bool:
        """Whether so much time may be lost to see whether drafting pays by now. `owed`: though nothing is spared."""
        source = self.sources[name]
        seconds += source.reading * max(0, unread - 1)
        tokens = seconds / self.target(1)
        if seconds > self._affordable(name) or (tokens > source.calibration.spare and not owed):
            return False
        source.calibration.spare = max(0.0, source.calibration.spare - tokens)
        return True

    def watch(self, draft: Draft, verdict: Verdict) -> None:
        """A draft that was not taken: what became of its places tells as much."""
        self._observe(self.sources[draft.source], draft, verdict)

    def another(self, draft: Draft) -> bool:
        """Whether to draft one more token after those."""
        size = len(draft.tokens)
        if size >= self.most or self.forced:
            return size < self.next()
        source, outlook, price = self.sources[draft.source], self.outlook(draft.source), self._price
        lost = (size + 1) * source.step + self.target(size + 2) - self.target(1)
        if not self._trusted(source) and lost > self._budget:
            return False
        likely = list(map(mul, self._so_far(draft, source), source.later))
        for more, series in zip(_SIZES, outlook.series, strict=False):
            cost = more * source.step + self.target(size + more + 1) - self.target(size + 1)
            if size + more <= self.most and sum(map(mul, likely, series)) > price * cost:
                return True
        return False

    def _so_far(self, draft: Draft, source: Source) -> list[float]:
        """The probability, jointly with each shift, that the reply goes along with all of a growing draft."""
        known = len(self._sure)
        if not known or draft.confidence[:known] != self._sure:
            self._reached, known = source.weights, 0
        self._reached = source.reach(draft.confidence[known:], self._reached)
        self._sure = draft.confidence
        return self._reached

    def _trusted(self, source: Source) -> bool:
        return source.calibration.tested >= _KNOWN

    def send(self, draft: Draft) -> int:
        """The beginning of the draft that gains most."""
        if not draft.tokens or self.forced or self.rule is Rule.REJECTION or len(draft.confidence) < len(draft.tokens):
            return len(draft.tokens)
        gains = [0.0, *self._gains(draft)]
        return max(range(len(gains)), key=gains.__getitem__)

    def forecast(self, draft: Draft) -> Sequence[float]:
        if draft.source not in self.sources:
            return ()
        reached = [1.0, *self._chances(draft)]
        return [after / before for before, after in pairwise(reached)]

    def gain(self, draft: Draft) -> float:
        """What the best beginning of a draft brings beyond its price, in tokens; what it took to draft is spent."""
        return max(self._gains(draft), default=0.0)

    def learn(self, round: Round) -> None:
        draft, emitted = round.draft, len(round.verdict.emitted)
        if self._written:
            self._plain += (emitted + round.verdict.end) * self.target(1)
            self._spent += round.drafting + round.scoring
        if not round.read and round.scoring > 0:
            self.target.observe(round.verdict.drafted + 1, round.scoring)
        self.lengths.grow(self._written, self._written + emitted)
        self._written += emitted
        self._rounds += 1
        for source in self.sources.values():
            source.calibration.spare = min(_SPARED, source.calibration.spare + _EXPLORED * emitted)
        drafted = self.sources.get(draft.source) if draft.tokens else None
        if drafted:
            self._learn_draft(drafted, round)
        for source in self.sources.values():
            source.pass_by(emitted if source is not drafted else 0)
        self._outlooks.clear()
        self._sure = ()

    def end(self) -> None:
        """The reply ended by itself."""
        self.lengths.end(self._written)

    def _learn_draft(self, source: Source, round: Round) -> None:
        self._learn_costs(source, round.draft)
        self._observe(source, round.draft, round.verdict)
        for each in self.sources.values():
            each.rested += each is not source
        source.rested = 0

    def _observe(self, source: Source, draft: Draft, verdict: Verdict) -> None:
        for confidence, accepted in outcomes(draft, verdict):
            source.observe(confidence, accepted)

    def _learn_costs(self, source: Source, draft: Draft) -> None:
        for seconds in draft.steps[1:]:
            source.step += _RECENT * (seconds - source.step) if source.step else seconds
        if draft.read > 8 and draft.steps:
            reading = max(0.0, draft.steps[0] - source.step) / draft.read
            source.reading += 0.5 * (reading - source.reading)

    @property
    def _price(self) -> float:
        """What a second is worth, in tokens."""
        plain = 1 / self.target(1)
        return max(plain, self.outlook(self._drafting).rate) if self._drafting in self.sources else plain

    def outlook(self, name: str) -> Outlook:
        """Time is worth what it brings: the rate is found by Dinkelbach's iteration (1967)."""
        if name not in self._outlooks:
            source, plain = self.sources[name], 1 / self.target(1)
            sizes = [size for size in _SIZES if size <= self.most]
            series = [[(1 - p**size) / (1 - p) for p in source.later] for size in sizes]
            costs = [(size - 1) * source.step + self.target(size + 1) - self.target(1) for size in sizes]
            likely = list(map(mul, source.weights, source.later))
            runs = [sum(map(mul, likely, each)) / sum(likely) for each in series]
            kinds, rate, brings, takes = source.kinds(), plain, 0.0, 0.0
            for _ in range(3):
                brings, takes = self._drafts(kinds, list(zip(runs, costs, strict=True)), rate)
                takes += source.step
                rate = max(plain, (1 + brings) / (self.target(1) + takes))
            self._outlooks[name] = Outlook(brings, takes, rate, series)
        return self._outlooks[name]

    def _drafts(
        self, kinds: Sequence[tuple[float, float]], runs: Sequence[tuple[float, float]], price: float
    ) -> tuple[float, float]:
        """Tokens and seconds that a draft adds beyond its first token's time, where a second is worth so many tokens.

        The first token is of any kind that the source drafts; then the draft is given up, or as long as is best.
        """
        brings = takes = 0.0
        for probability, share in kinds:
            gains = [probability * tokens - price * seconds for tokens, seconds in runs]
            best = max(gains)
            if best > 0 or self.rule is Rule.REJECTION:
                tokens, seconds = runs[gains.index(best)]
                brings += share * probability * tokens
                takes += share * seconds
        return brings, takes

    def _chances(self, draft: Draft) -> list[float]:
        """The probability that the reply goes along with the draft up to each of its tokens."""
        source, found = self.sources[draft.source], list[float]()
        reached = source.weights
        for confidence in sureness(draft):
            reached = source.reach((confidence,), reached)
            found.append(sum(reached))
        return found

    def _gains(self, draft: Draft) -> Iterable[float]:
        total, price = 0.0, self._price
        for size, reached in enumerate(self._chances(draft), start=1):
            total += reached
            yield total - price * (self.target(size + 1) - self.target(1))


def tell_end(lookahead: Lookahead, event: Event) -> None:
    """Let a planner know that its reply ended by itself, and not at a limit."""
    if isinstance(lookahead, Planner) and isinstance(event, Done) and event.reason is DoneReason.STOP:
        lookahead.end()
