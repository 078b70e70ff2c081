"""Estimates the acceptance probability of drafted tokens from drafter confidence and the reply's recent acceptance."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from operator import mul

from specollama.spec_decode.types import Draft, VerifyResult

CONFIDENCE_BINS = 20
_PRIOR_WEIGHT = 4.0  # weight of a bin's prior, in tokens
_MEMORY = 500.0  # maximum weight of a bin's counts, in tokens; older counts fade
_MAX_PRIOR = 0.995  # upper limit of the prior probability
_MEAN = 0.8  # prior acceptance rate of a drafter
_MEAN_WEIGHT = 4.0  # weight of that prior, in tokens
INITIAL_EXPLORATION = 4.0  # a new drafter's exploration allowance, in plain decode steps
LOG_ODDS_SHIFTS = (-3.0, -1.5, -0.7, 0.0, 0.7, 1.5)  # shifts of the acceptance log-odds within a reply
_ODDS = tuple(math.exp(shift) for shift in LOG_ODDS_SHIFTS)
_USUAL = (0.3, 0.6, 1.2, 10.0, 1.2, 0.6)  # prior weight of each shift, in tokens
_UNSAID = 0.8  # confidence assumed for a drafter that gives none
_SWITCH = 0.03  # probability per token that the shift changes
_SHIFT_MEMORY = 2000.0  # maximum weight of the shift counts, in tokens


@dataclass(slots=True)
class Calibration:
    """Acceptance counts of a drafter by confidence bin, saved from reply to reply.

    `hits` and `trials`: accepted and tested tokens by confidence bin; old counts fade. An empty bin predicts the
    confidence itself. `shifts`: tokens by the log-odds shift that held at their position. `spare`: the drafter's
    exploration allowance, in plain decode steps.
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
        """Acceptance rate over all confidences, smoothed by a prior."""
        return (sum(self.hits) + _MEAN_WEIGHT * _MEAN) / (self.tested + _MEAN_WEIGHT)

    def probability(self, confidence: float) -> float:
        """Probability that a token drafted with this confidence is accepted, given its predecessors were."""
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
        """Long-run frequency of each log-odds shift."""
        total = sum(self.shifts) + sum(_USUAL)
        return [(seen + first) / total for seen, first in zip(self.shifts, _USUAL, strict=True)]

    def observe_shifts(self, weights: Sequence[float]) -> None:
        keep = min(1.0, _SHIFT_MEMORY / (sum(self.shifts) + 1))
        self.shifts = [keep * seen + weight for seen, weight in zip(self.shifts, weights, strict=True)]

    def token_classes(self) -> list[tuple[float, float]]:
        """Classes of drafted tokens, as pairs: acceptance probability, and share of all drafted tokens."""
        total = self.tested + _MEAN_WEIGHT
        seen = [(hit / trial, trial / total) for hit, trial in zip(self.hits, self.trials, strict=True) if trial > 0]
        return [*seen, (_MEAN, _MEAN_WEIGHT / total)]


def _bin(confidence: float) -> int:
    """Index of the confidence bin. Bins are narrower near 1, where small differences change draft length a lot."""
    return min(CONFIDENCE_BINS - 1, int((1 - math.sqrt(1 - min(1.0, max(0.0, confidence)))) * CONFIDENCE_BINS))


def shifted_probabilities(probability: float) -> list[float]:
    """The probability after each shift of its log-odds."""
    return [odds * probability / (odds * probability + 1 - probability) for odds in _ODDS]


@dataclass(slots=True)
class DrafterStats:
    """Statistics of one drafter: seconds per drafted and per prefilled token, and its acceptance in the present reply.

    Acceptance may change within a reply, for example where prose follows code. `shift_weights` are the probabilities
    of each log-odds shift at this position: the forward pass of a hidden Markov model. `rounds_idle`: rounds drafted
    by other drafters since this one's last draft.
    """

    decode_seconds: float = 0.0
    prefill_seconds_per_token: float = 0.0
    calibration: Calibration = field(default_factory=Calibration)
    rounds_idle: int = 0
    shift_weights: list[float] = field(init=False)
    future_accept_probs: list[float] = field(init=False)  # by shift: expected acceptance rate of future tokens

    def __post_init__(self) -> None:
        self.shift_weights = self.calibration.shift_prior()
        self.future_accept_probs = shifted_probabilities(self.calibration.mean_acceptance)

    def token_classes(self) -> list[tuple[float, float]]:
        """Classes of drafted tokens, as pairs: acceptance probability, and share of all drafted tokens."""
        return [
            (sum(map(mul, self.shift_weights, shifted_probabilities(p))), share)
            for p, share in self.calibration.token_classes()
        ]

    def prefill_seconds(self, unread: int) -> float:
        """Seconds to prefill so many tokens. The last of them is left out: the first draft step decodes it."""
        return self.prefill_seconds_per_token * max(0, unread - 1)

    def joint_accept_probs(self, confidences: Sequence[float], before: Sequence[float] | None = None) -> list[float]:
        """By shift: the joint probability of the shift and the acceptance of all tokens with these confidences."""
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
        """Move the hidden Markov model forward by `tokens` unobserved tokens."""
        stays = (1 - _SWITCH) ** tokens
        usual = self.calibration.shift_prior()
        self.shift_weights = [stays * w + (1 - stays) * u for w, u in zip(self.shift_weights, usual, strict=True)]


def confidences_of(draft: Draft) -> Sequence[float]:
    """The drafter's confidence in each token, or a constant if the drafter gives none."""
    return draft.confidence or (_UNSAID,) * len(draft.tokens)


def acceptance_outcomes(draft: Draft, verdict: VerifyResult) -> list[tuple[float, bool]]:
    """Confidence and outcome (accepted or not) of each drafted token that the emitted text covers.

    Tokens that were drafted but not sent count too, as far as the emitted text reaches: comparing them costs nothing.
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
