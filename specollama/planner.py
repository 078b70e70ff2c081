"""Whether to draft, how much, and how much of it to have scored: by what it costs and how likely it is accepted.

Everything is weighed in tokens: a second of time is worth as many as are written in one anyway, plainly or by the
last rounds, whichever is faster. Pure: times come in, decisions go out.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import accumulate
from operator import mul

from specollama.lookahead import staged
from specollama.types import Draft, Round, Rule, Verdict

LOOKUP = "lookup"
BINS = 20
MOST = 32  # tokens in a draft
_PRIOR_WEIGHT = 4.0  # tokens that a bin's first guess counts for
_MEMORY = 500.0  # tokens that a bin remembers
_SUREST = 0.995  # the most that is believed before anything was seen
_DOUBT_WEIGHT = 1.0  # missed tokens for which a drafter is believed as it is calibrated
_DOUBT_MEMORY = 0.95  # of what a reply has shown, token by token
_SHIFT = 0.2  # how fast the whole curve follows the machine
_BEND = 0.05  # how fast a point of it moves against the others
_RECENT = 0.08  # how fast what drafting brings follows the reply
_RESTED = 8  # drafts of others, after which a model may be tried again
_WINDOW = 0.1  # how fast the rate of the last rounds does
_EXPLORED = 0.01  # of the time: drafting where it seems not to pay, so that a change is noticed
ROUND = 3  # tokens that a round is expected to bring
_READING = 0.25  # of the reply's plain time, that a model may spend on reading before its first draft
_FEWEST_READ = 64  # tokens
REPLY = 256  # tokens a reply is expected to have where nothing limits it


@dataclass(slots=True)
class CostCurve:
    """Seconds of a pass by its number of tokens: measured points, straight lines between them.

    A busy machine, or a longer context, makes all of it dearer; that is kept apart from the shape.
    """

    points: dict[int, float]
    scale: float = 1.0
    _drawn: list[float] = field(default_factory=list)  # the shape, by tokens: it is asked for thousands of times

    def __call__(self, tokens: int) -> float:
        while len(self._drawn) <= tokens:
            self._drawn.append(self._shape(len(self._drawn)))
        return self.scale * self._drawn[tokens]

    def observe(self, tokens: int, seconds: float) -> None:
        """A pass over so many tokens took so long."""
        ratio = min(4.0, max(0.25, seconds / self(tokens)))
        self.scale *= ratio**_SHIFT
        shape = self._shape(tokens)
        self.points[tokens] = shape + _BEND * (shape * ratio - shape)
        self._drawn.clear()

    def _shape(self, tokens: int) -> float:
        sizes = sorted(self.points)
        below = max((size for size in sizes if size <= tokens), default=sizes[0])
        above = min((size for size in sizes if size >= tokens), default=sizes[-1])
        if below == above:
            return self._beyond(sizes, tokens) if tokens > sizes[-1] else self.points[below]
        share = (tokens - below) / (above - below)
        return self.points[below] + share * (self.points[above] - self.points[below])

    def _beyond(self, sizes: Sequence[int], tokens: int) -> float:
        """Past the last point the last line goes on."""
        if len(sizes) < 2:
            return self.points[sizes[-1]]
        before, last = sizes[-2:]
        slope = max(0.0, (self.points[last] - self.points[before]) / (last - before))
        return self.points[last] + slope * (tokens - last)


@dataclass(slots=True)
class Calibration:
    """How often a token was accepted by how sure its drafter was: counts in bins of confidence.

    Old counts fade. A bin that has seen nothing answers with the confidence itself.
    """

    hits: list[float] = field(default_factory=lambda: [0.0] * BINS)
    trials: list[float] = field(default_factory=lambda: [0.0] * BINS)

    def probability(self, confidence: float) -> float:
        """The probability that a token drafted with this confidence is accepted, if those before it were."""
        place = _bin(confidence)
        guess = min(_SUREST, max(1 - _SUREST, confidence))
        return (self.hits[place] + _PRIOR_WEIGHT * guess) / (self.trials[place] + _PRIOR_WEIGHT)

    def observe(self, confidence: float, accepted: bool) -> None:
        place = _bin(confidence)
        if self.trials[place] >= _MEMORY:
            keep = (_MEMORY - 1) / self.trials[place]
            self.hits[place] *= keep
            self.trials[place] *= keep
        self.hits[place] += accepted
        self.trials[place] += 1


def _bin(confidence: float) -> int:
    """Narrower ones towards certainty, where a little more makes drafts much longer."""
    return min(BINS - 1, int((1 - math.sqrt(1 - min(1.0, max(0.0, confidence)))) * BINS))


@dataclass(slots=True)
class Source:
    """What is known of one drafter: seconds a token drafted and a token read, and how its drafts fare.

    `brings` and `takes`: tokens beyond the plain one and seconds beyond its pass, of its latest drafts; None before the
    first. `follow`: how likely the next token is accepted after those that were drafted so far. `rested`: drafts of
    others since its own last one.
    """

    step: float = 0.0
    reading: float = 0.0
    calibration: Calibration = field(default_factory=Calibration)
    brings: float | None = None
    takes: float = 0.0
    follow: float = 0.8
    rested: int = 0
    _missed: float = 0.0
    _feared: float = 0.0

    def probability(self, confidence: float) -> float:
        """As calibrated, and as this reply bears it out: prose after code is another matter at once."""
        doubt = (self._missed + _DOUBT_WEIGHT) / (self._feared + _DOUBT_WEIGHT)
        return max(0.0, 1 - doubt * (1 - self.calibration.probability(confidence)))

    def observe(self, confidence: float, accepted: bool) -> None:
        self._missed = _DOUBT_MEMORY * self._missed + (not accepted)
        self._feared = _DOUBT_MEMORY * self._feared + 1 - self.calibration.probability(confidence)
        self.calibration.observe(confidence, accepted)


@dataclass(slots=True)
class Planner:
    """The lookahead that pays (lookahead.Lookahead), for one reply.

    `target`: seconds of a pass of the target by its tokens; `sources`: the drafters by name; `expected`: tokens that
    the reply may have. `forced`: lengths by round, whatever they bring, the last one for all later rounds. Under
    Rule.REJECTION all that was drafted is sent: what is left out may not depend on later tokens.
    """

    target: CostCurve
    sources: dict[str, Source]
    rule: Rule
    expected: int = REPLY
    most: int = MOST
    forced: tuple[int, ...] = ()
    _tokens: float = 1 / _WINDOW  # of the last rounds, older ones fading; at first as if they had been plain
    _seconds: float = 0.0  # that those took
    _to_explore: float = 0.0  # seconds that may be spent on drafts that seem not to pay
    _written: int = 0
    _rounds: int = 0

    def __str__(self) -> str:
        return staged(self.forced) if self.forced else f"0-{self.most}"

    def next(self) -> int:
        """The first token comes from the target alone: nothing delays it."""
        if self.forced:
            return self.forced[min(self._rounds, len(self.forced) - 1)]
        return self.most if self._written else 0

    def choose(self, unread: Mapping[str, int], *, instead: float = 0.0) -> str | None:
        """The model that is to draft now, if any: the one of which most is hoped for, now and then another.

        `unread`: tokens that each would have to read first; `instead`: as for `worth`.
        """
        best = max(unread, key=self.hope, default=None)
        if best is None:
            return None
        other = max((name for name in unread if name != best), key=lambda name: self.sources[name].rested, default=best)
        if self.sources[other].rested >= _RESTED and not self.forced:
            reading = self.sources[other].reading * max(0, unread[other] - 1)
            if self._explore(self._seconds_lost(best, other) + reading):
                return other
        return best if self.worth(best, unread[best], instead=instead) else None

    def _seconds_lost(self, best: str, other: str) -> float:
        """What a draft of another model than the best is expected to lose."""
        return max(0.0, self.hope(best) - self.hope(other)) / self._price(1.0)

    def worth(self, name: str, unread: int, *, instead: float = 0.0) -> bool:
        """Whether to let a model draft now, which has to read so many tokens first.

        `instead`: tokens that may be gained without it. What it reads serves all drafts to come.
        """
        if self.forced:
            return instead <= 0
        source = self.sources[name]
        reading = source.reading * max(0, unread - 1)
        rounds = max(1.0, (self.expected - self._written) / ROUND)
        brings, takes = self._hoped(source)
        beats_plain = brings > (takes + reading / rounds) / self.target(1)
        if beats_plain and self.hope(name) >= instead:
            return True
        return instead <= 0 and self._explore(source.step + reading)

    def window(self, name: str) -> int:
        """Tokens that are worth reading before a first draft: of a longer text a draft model reads only the end."""
        reading = self.sources[name].reading
        affordable = _READING * self.expected * self.target(1) / reading if reading > 0 else self.expected
        return max(_FEWEST_READ, int(affordable))

    def _explore(self, seconds: float) -> bool:
        """Whether so much time may be spent to see whether drafting pays by now."""
        if self._to_explore < seconds:
            return False
        self._to_explore -= seconds
        return True

    def hope(self, name: str) -> float:
        """What a draft of that model can be expected to gain, in tokens."""
        brings, takes = self._hoped(self.sources[name])
        return brings - self._price(takes)

    def watch(self, draft: Draft, verdict: Verdict) -> None:
        """A draft that was not taken: what became of its places tells as much."""
        for confidence, accepted in outcomes(draft, verdict):
            self.sources[draft.source].observe(confidence, accepted)

    def another(self, draft: Draft) -> bool:
        """Whether to draft one more token after those."""
        if len(draft.tokens) >= self.most or self.forced:
            return len(draft.tokens) < self.next()
        source = self.sources[draft.source]
        reached = math.prod(self._probabilities(draft))
        size = len(draft.tokens) + 1
        best, likely = 0.0, reached
        total = 0.0
        for more in range(1, self.most - len(draft.tokens) + 1):
            likely *= source.follow
            total += likely
            cost = more * source.step + self.target(size + more) - self.target(size)
            best = max(best, total - self._price(cost))
        return best > 0

    def send(self, draft: Draft) -> int:
        """The beginning of the draft that gains most."""
        if not draft.tokens or self.forced or self.rule is Rule.REJECTION or len(draft.confidence) < len(draft.tokens):
            return len(draft.tokens)
        gains = [0.0, *self._gains(draft)]
        return max(range(len(gains)), key=gains.__getitem__)

    def forecast(self, draft: Draft) -> Sequence[float]:
        return self._probabilities(draft) if draft.source in self.sources else ()

    def gain(self, draft: Draft) -> float:
        """What the best beginning of a draft brings beyond its price, in tokens; what it took to draft is spent."""
        return max(self._gains(draft), default=0.0)

    def learn(self, round: Round) -> None:
        draft, verdict = round.draft, round.verdict
        sent = verdict.drafted
        emitted = len(verdict.emitted)
        self._written += emitted
        self._rounds += 1
        if not round.read and round.scoring > 0:
            self.target.observe(sent + 1, round.scoring)
        self._learn_rate(emitted, round)
        if draft.tokens and draft.source in self.sources:
            self._learn_draft(draft, round)

    def _learn_rate(self, emitted: int, round: Round) -> None:
        seconds = round.drafting + round.scoring
        if round.read or seconds <= 0 or not emitted:
            return
        self._seconds = self._seconds or self.target(1) / _WINDOW
        self._tokens += emitted - _WINDOW * self._tokens
        self._seconds += seconds - _WINDOW * self._seconds
        self._to_explore = min(self._to_explore + _EXPLORED * seconds, 1.0)

    def _learn_draft(self, draft: Draft, round: Round) -> None:
        source = self.sources[draft.source]
        self._learn_costs(source, draft)
        probabilities = self._probabilities(draft)
        for later in probabilities[1:]:
            source.follow += _RECENT * (later - source.follow)
        for confidence, accepted in outcomes(draft, round.verdict):
            source.observe(confidence, accepted)
        sent = round.verdict.drafted
        for each in self.sources.values():
            each.rested += each is not source
        likely = sum(accumulate(probabilities[:sent], mul)) if draft.confidence else float(round.verdict.accepted)
        time = sum(draft.steps[1:]) + source.step * bool(draft.steps) + self.target(sent + 1) - self.target(1)
        brings, takes = self._hoped(source)
        news = 1 - (1 - _RECENT) ** (1 + source.rested)  # what was known before has grown old meanwhile
        source.brings = brings + news * (likely - brings)
        source.takes = takes + news * (time - takes)
        source.rested = 0

    def _learn_costs(self, source: Source, draft: Draft) -> None:
        for seconds in draft.steps[1:]:
            source.step += _RECENT * (seconds - source.step)
        if draft.read > 8 and draft.steps:
            reading = max(0.0, draft.steps[0] - source.step) / draft.read
            source.reading += 0.5 * (reading - source.reading)

    def _hoped(self, source: Source) -> tuple[float, float]:
        """Tokens and seconds that a draft adds: as lately; before the first as if its tokens were mostly accepted."""
        if source.brings is not None:
            return source.brings, source.takes
        best, likely, total = (0.0, 0.0), 1.0, 0.0
        for size in range(1, self.most + 1):
            likely *= source.follow
            total += likely
            cost = size * source.step + self.target(size + 1) - self.target(1)
            if total - self._price(cost) > best[0] - self._price(best[1]):
                best = total, cost
        return best

    def _gains(self, draft: Draft) -> Iterable[float]:
        likely = accumulate(accumulate(self._probabilities(draft), mul))
        for size, expected in enumerate(likely, start=1):
            yield expected - self._price(self.target(size + 1) - self.target(1))

    def _probabilities(self, draft: Draft) -> list[float]:
        source = self.sources[draft.source]
        return [source.probability(confidence) for confidence in draft.confidence]

    def _price(self, seconds: float) -> float:
        """What time is worth, in tokens."""
        recent = self._tokens / self._seconds if self._seconds else 0.0
        return seconds * max(1 / self.target(1), recent)


def outcomes(draft: Draft, verdict: Verdict) -> list[tuple[float, bool]]:
    """The confidence of each drafted token whose place the reply has reached, and whether the reply has it there.

    Tokens that weren't sent count as well, as far as what was written goes: they cost nothing to look at.
    """
    written = "".join(emitted.token.text for emitted in verdict.emitted)
    found, offset = list[tuple[float, bool]](), 0
    for token, confidence in zip(draft.tokens, draft.confidence, strict=False):
        if offset >= len(written):
            break
        agreed = written.startswith(token.text, offset)
        found.append((confidence, agreed))
        if not agreed:
            break
        offset += len(token.text)
    return found
