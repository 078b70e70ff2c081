"""Acceptance probability of drafted tokens, from the drafter's confidence and the outcomes in the present reply."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from operator import mul

from specollama.spec_decode.types import Draft, VerifyResult

CONFIDENCE_BINS = 20
_PRIOR_WEIGHT = 4.0  # tokens that a bin's first guess counts for
_MEMORY = 500.0  # tokens that a bin remembers
_MAX_PRIOR = 0.995  # the most that is believed before anything was seen
_MEAN = 0.8  # acceptance rate of a drafter of which nothing is known
_MEAN_WEIGHT = 4.0  # tokens that it counts for
INITIAL_EXPLORATION = 4.0  # plain tokens' time that getting to know a drafter may cost
LOG_ODDS_SHIFTS = (-3.0, -1.5, -0.7, 0.0, 0.7, 1.5)  # of the log-odds of acceptance, in parts of a reply
_ODDS = tuple(math.exp(shift) for shift in LOG_ODDS_SHIFTS)
_USUAL = (0.3, 0.6, 1.2, 10.0, 1.2, 0.6)  # tokens that the first guess of each shift counts for
_UNSAID = 0.8  # confidence of a drafter that doesn't say how sure it is
_SWITCH = 0.03  # probability that the shift changes, by token
_SHIFT_MEMORY = 2000.0  # tokens


@dataclass(slots=True)
class Calibration:
    """A drafter's saved counts: acceptance by confidence, and how much acceptance varies between parts of replies.

    `hits` and `trials`: accepted and tested tokens in bins of confidence; old counts fade. A bin that has seen nothing
    answers with the confidence itself. `shifts`: tokens by the shift of the log-odds that held where they stood.
    `spare`: plain tokens' time that may be lost by trying it where it isn't known to pay.
    """

    hits: list[float] = field(default_factory=lambda: [0.0] * CONFIDENCE_BINS)
    trials: list[float] = field(default_factory=lambda: [0.0] * CONFIDENCE_BINS)
    shifts: list[float] = field(default_factory=lambda: [0.0] * len(LOG_ODDS_SHIFTS))
    spare: float = INITIAL_EXPLORATION

    @property
    def tested(self) -> float:
        return sum(self.trials)

    @property
    def mean_acceptance(self) -> float:
        """The acceptance rate over all drafted tokens."""
        return (sum(self.hits) + _MEAN_WEIGHT * _MEAN) / (self.tested + _MEAN_WEIGHT)

    def probability(self, confidence: float) -> float:
        """Probability that a token drafted with this confidence is accepted, given that its predecessors were."""
        place = _bin(confidence)
        guess = min(_MAX_PRIOR, max(1 - _MAX_PRIOR, confidence))
        return (self.hits[place] + _PRIOR_WEIGHT * guess) / (self.trials[place] + _PRIOR_WEIGHT)

    def observe(self, confidence: float, accepted: bool) -> None:
        place = _bin(confidence)
        if self.trials[place] >= _MEMORY:
            keep = (_MEMORY - 1) / self.trials[place]
            self.hits[place] *= keep
            self.trials[place] *= keep
        self.hits[place] += accepted
        self.trials[place] += 1

    def shift_prior(self) -> list[float]:
        """The long-run share of each shift of the log-odds."""
        total = sum(self.shifts) + sum(_USUAL)
        return [(seen + first) / total for seen, first in zip(self.shifts, _USUAL, strict=True)]

    def observe_shifts(self, weights: Sequence[float]) -> None:
        keep = min(1.0, _SHIFT_MEMORY / (sum(self.shifts) + 1))
        self.shifts = [keep * seen + weight for seen, weight in zip(self.shifts, weights, strict=True)]

    def token_classes(self) -> list[tuple[float, float]]:
        """The kinds of drafted tokens: the acceptance probability of each, and its share of the tokens."""
        total = self.tested + _MEAN_WEIGHT
        seen = [(hit / trial, trial / total) for hit, trial in zip(self.hits, self.trials, strict=True) if trial > 0]
        return [*seen, (_MEAN, _MEAN_WEIGHT / total)]


def _bin(confidence: float) -> int:
    """Bins narrow towards 1, where a little more confidence makes drafts much longer."""
    return min(CONFIDENCE_BINS - 1, int((1 - math.sqrt(1 - min(1.0, max(0.0, confidence)))) * CONFIDENCE_BINS))


def shifted_probabilities(probability: float) -> list[float]:
    """The probability under each shift of the log-odds."""
    return [odds * probability / (odds * probability + 1 - probability) for odds in _ODDS]


@dataclass(slots=True)
class DrafterStats:
    """One drafter in one reply: seconds per drafted and per prefilled token, and its acceptance so far.

    The acceptance may change within a reply, as where prose follows code. `shift_weights` are the probabilities of each
    shift of the log-odds at this place: the forward pass of a hidden Markov model. `rounds_idle`: drafts of others
    since its own last one.
    """

    decode_seconds: float = 0.0
    prefill_seconds_per_token: float = 0.0
    calibration: Calibration = field(default_factory=Calibration)
    rounds_idle: int = 0
    shift_weights: list[float] = field(init=False)
    future_accept_probs: list[float] = field(init=False)  # the acceptance rate of tokens to come, under each shift

    def __post_init__(self) -> None:
        self.shift_weights = self.calibration.shift_prior()
        self.future_accept_probs = shifted_probabilities(self.calibration.mean_acceptance)

    def token_classes(self) -> list[tuple[float, float]]:
        """The kinds of drafted tokens: the acceptance probability of each, and its share of the tokens."""
        return [
            (sum(map(mul, self.shift_weights, shifted_probabilities(p))), share)
            for p, share in self.calibration.token_classes()
        ]

    def joint_accept_probs(self, confidences: Sequence[float], before: Sequence[float] | None = None) -> list[float]:
        """Joint probability of each shift and of accepting all tokens drafted with these confidences."""
        reached = list(before or self.shift_weights)
        for confidence in confidences:
            reached = list(map(mul, reached, shifted_probabilities(self.calibration.probability(confidence))))
        return reached

    def observe(self, confidence: float, accepted: bool) -> None:
        under = shifted_probabilities(self.calibration.probability(confidence))
        likely = [w * (p if accepted else 1 - p) for w, p in zip(self.shift_weights, under, strict=True)]
        total = sum(likely)
        self.shift_weights = [each / total for each in likely]
        self.calibration.observe_shifts(self.shift_weights)
        self.calibration.observe(confidence, accepted)
        self.future_accept_probs = shifted_probabilities(self.calibration.mean_acceptance)
        self.advance(1)

    def advance(self, tokens: int) -> None:
        """Let the shift change over so many tokens."""
        stays = (1 - _SWITCH) ** tokens
        usual = self.calibration.shift_prior()
        self.shift_weights = [stays * w + (1 - stays) * u for w, u in zip(self.shift_weights, usual, strict=True)]


def confidences_of(draft: Draft) -> Sequence[float]:
    """The drafter's confidence in each token; a constant where the drafter reports none."""
    return draft.confidence or (_UNSAID,) * len(draft.tokens)


def acceptance_outcomes(draft: Draft, verdict: VerifyResult) -> list[tuple[float, bool]]:
    """The confidence of each drafted token whose place the reply has reached, and whether the reply has it there.

    Tokens that weren't sent count as well, as far as what was written goes: they cost nothing to look at.
    """
    written = "".join(emitted.token.text for emitted in verdict.emitted)
    found, offset = list[tuple[float, bool]](), 0
    for token, confidence in zip(draft.tokens, confidences_of(draft), strict=False):
        if offset >= len(written):
            break
        agreed = written.startswith(token.text, offset)
        found.append((confidence, agreed))
        if not agreed:
            break
        offset += len(token.text)
    return found


PROMPT_LOOKUP = "lookup"


MAX_DRAFT_TOKENS = 32  # tokens in a draft
