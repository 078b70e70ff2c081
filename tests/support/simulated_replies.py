"""Replies on a virtual clock: prompts that the draft model has to read, replies that end, and what is kept of both."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from copy import deepcopy
from dataclasses import dataclass, field
from random import Random

from specollama.spec_decode.calibration import Calibration, DrafterStats
from specollama.spec_decode.cost_curve import CostCurve
from specollama.spec_decode.planner import Planner
from specollama.spec_decode.reply_length import LengthsByRequest
from specollama.spec_decode.types import AcceptanceMethod, Draft, Origin, OutputToken, RoundRecord, VerifyResult
from tests.support.simulated import RIGHT, WRONG, Machine

_SPREAD = 1.5  # of a beta distribution: small, so that most tokens are either sure or hopeless
_LONGEST = 32  # tokens in a draft


@dataclass(frozen=True, slots=True)
class Tokens:
    """At each place of a reply: whether the draft model's token is the target's, and how sure the draft model is."""

    right: Sequence[bool]
    sure: Sequence[float]

    def __len__(self) -> int:
        return len(self.right)


def independent(acceptance: float, tokens: int, seed: int, *, informed: bool) -> Tokens:
    """Places that know nothing of each other. `informed`: the confidence is the probability to be right."""
    random = Random(seed)
    spread = [random.betavariate(acceptance * _SPREAD, (1 - acceptance) * _SPREAD) for _ in range(tokens)]
    chances = spread if informed else [acceptance] * tokens
    return Tokens([random.random() < chance for chance in chances], spread)


def bursty(tokens: int, seed: int) -> Tokens:
    """Stretches of some 40 tokens, predictable and not; the confidence tells of the place, not only of the stretch."""
    random = Random(seed)
    good, chances = random.random() < 0.5, list[float]()
    for _ in range(tokens):
        good ^= random.random() < 1 / 40
        mean = 0.95 if good else 0.35
        chances.append(random.betavariate(3 * mean, 3 * (1 - mean)))
    return Tokens([random.random() < chance for chance in chances], chances)


def fixed_seconds(machine: Machine, reply: Tokens, prompt: int, size: int) -> float:
    """Seconds of a reply's tokens after the first one, all drafts being of that size."""
    curve, seconds, written, known = CostCurve(dict(machine.passes)), 0.0, 1, 0
    while written <= len(reply):  # the end takes a place of its own
        accepted = _accepted(reply, written, size)
        reading = (prompt + written - known - 1) * machine.reading if size else 0.0
        seconds += size * machine.step + reading + curve(size + 1)
        known = prompt + written + min(accepted, size - 1)
        written += accepted + 1
    return seconds


def _accepted(reply: Tokens, written: int, sent: int) -> int:
    accepted = 0
    while accepted < sent and written + accepted < len(reply) and reply.right[written + accepted]:
        accepted += 1
    return accepted


def best_fixed(machine: Machine, replies: Sequence[Tokens], prompt: int) -> float:
    """Seconds of all the replies at the best of all fixed sizes."""
    sizes = range(_LONGEST + 1)
    return min(sum(fixed_seconds(machine, reply, prompt, size) for reply in replies) for size in sizes)


@dataclass(slots=True)
class Pair:
    """What is kept between the replies of a pair."""

    machine: Machine
    calibration: Calibration = field(default_factory=Calibration)
    lengths: LengthsByRequest = field(default_factory=LengthsByRequest)

    def copy(self) -> Pair:
        return Pair(self.machine, deepcopy(self.calibration), deepcopy(self.lengths))

    def seconds(self, reply: Tokens, prompt: int) -> float:
        """Seconds of a reply's tokens after the first one, as the planner has them drafted."""
        source = DrafterStats(self.machine.step, self.machine.reading, self.calibration)
        lengths = self.lengths.for_prompt([0] * prompt)
        planner = Planner(CostCurve(dict(self.machine.passes)), {"model": source}, AcceptanceMethod.GREEDY, lengths)
        seconds = sum(_rounds(planner, self.machine, reply, prompt))
        planner.reply_ended()
        return seconds


def _rounds(planner: Planner, machine: Machine, reply: Tokens, prompt: int) -> Iterator[float]:
    """The seconds of each round but the first, which reads the prompt."""
    curve, written, known = CostCurve(dict(machine.passes)), 0, 0
    while written < len(reply) or not known:
        draft = _draft(planner, machine, reply, written, prompt + written - known if known else prompt + written, known)
        verdict = _verdict(reply, written, planner.verify_length(draft))
        drafting, scoring = sum(draft.step_seconds), curve(verdict.drafted + 1)
        if written:
            yield drafting + scoring
        planner.learn(RoundRecord(draft, verdict, drafting, scoring, 0 if written else prompt))
        if draft.tokens:
            known = prompt + written + min(verdict.accepted, len(draft.tokens) - 1)
        written += len(verdict.emitted)
        if verdict.end:
            return


def _draft(planner: Planner, machine: Machine, reply: Tokens, written: int, unread: int, known: int) -> Draft:
    if not planner.max_draft_tokens():
        return Draft()
    unread = unread if known else min(unread, planner.prefill_window("model"))
    draft = Draft(source="model", prefilled_tokens=unread)
    if not planner.pick_drafter({"model": unread}):
        return Draft()
    while True:
        size = len(draft.tokens)
        place = written + size
        sure = reply.sure[place] if place < len(reply) else 0.5
        step = machine.step + (0.0 if size else (unread - 1) * machine.reading)
        draft = Draft(
            (*draft.tokens, RIGHT),
            (None,) * (size + 1),
            "model",
            (*draft.confidence, sure),
            (*draft.step_seconds, step),
            unread,
        )
        if not planner.should_extend(draft):
            return draft


def _verdict(reply: Tokens, written: int, sent: int) -> VerifyResult:
    accepted = _accepted(reply, written, sent)
    emitted = [OutputToken(RIGHT, Origin.ACCEPTED)] * accepted
    place = written + accepted
    end = place >= len(reply)
    if not end:
        origin = Origin.RECOVERED if accepted < sent else Origin.BONUS
        emitted.append(OutputToken(RIGHT if reply.right[place] else WRONG, origin))
    return VerifyResult(tuple(emitted), sent, min(sent, accepted + 1), accepted, end)
