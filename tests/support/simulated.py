"""Rounds on a virtual clock: a draft model of a given acceptance, passes of given cost, no model and no time."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from random import Random

from specollama.spec_decode.calibration import MAX_DRAFT_TOKENS, DrafterStats
from specollama.spec_decode.cost_curve import CostCurve
from specollama.spec_decode.planner import Planner
from specollama.spec_decode.types import AcceptanceMethod, Draft, Origin, OutputToken, RoundRecord, Token, VerifyResult

RIGHT, WRONG = Token("r"), Token("w")


@dataclass(slots=True)
class Fixed:
    """Drafts so many tokens, come what may."""

    tokens: int

    def max_draft_tokens(self) -> int:
        return self.tokens

    def pick_drafter(self, unread: Mapping[str, int]) -> str:
        return next(iter(unread))

    def should_extend(self, draft: Draft) -> bool:
        return len(draft.tokens) < self.tokens

    def verify_length(self, draft: Draft) -> int:
        return len(draft.tokens)

    def learn(self, round: RoundRecord) -> None:
        pass


@dataclass(slots=True)
class Machine:
    """What things cost, in seconds. `passes`: of the target, by tokens; `step`: a token of the draft model.

    `reading`: a token of the text that the draft model reads.
    """

    passes: Mapping[int, float]
    step: float
    reading: float = 0.0

    def planner(self, rule: AcceptanceMethod = AcceptanceMethod.GREEDY) -> Planner:
        return Planner(CostCurve(dict(self.passes)), {"model": DrafterStats(self.step)}, rule)

    def rate(self, lookahead: Planner | Fixed, accepted: Callable[[int], float], tokens: int, seed: int = 1) -> float:
        """Tokens a second of a reply in which the token at each place is accepted with that probability.

        The draft model's confidence is that probability.
        """
        random, curve, seconds, written = Random(seed), CostCurve(dict(self.passes)), 0.0, 0
        while written < tokens:
            draft = self._draft(lookahead, accepted, written)
            sent = lookahead.verify_length(draft)
            verdict = _verdict(draft, sent, random)
            scoring = curve(sent + 1)
            drafting = sum(draft.step_seconds)
            seconds += drafting + scoring
            written += len(verdict.emitted)
            lookahead.learn(RoundRecord(draft, verdict, drafting, scoring))
        return written / seconds

    def rate_of_fixed(self, count: int, acceptance: float) -> float:
        """Tokens a second, by expectation, of a long reply for which so many tokens are drafted each round."""
        emitted = sum(acceptance**place for place in range(count + 1))
        return emitted / (count * self.step + CostCurve(dict(self.passes))(count + 1))

    def _draft(self, lookahead: Planner | Fixed, accepted: Callable[[int], float], written: int) -> Draft:
        if not (count := lookahead.max_draft_tokens()) or not lookahead.pick_drafter({"model": 1}):
            return Draft()
        return self.drafted(lookahead, accepted, written, "model", count)

    def drafted(
        self,
        lookahead: Planner | Fixed,
        accepted: Callable[[int], float],
        written: int,
        name: str,
        count: int = MAX_DRAFT_TOKENS,
    ) -> Draft:
        draft = Draft(source=name)
        while len(draft.tokens) < count:
            sure = accepted(written + len(draft.tokens))
            draft = replace(
                draft,
                tokens=(*draft.tokens, RIGHT),
                confidence=(*draft.confidence, sure),
                step_seconds=(*draft.step_seconds, self.step),
            )
            if not lookahead.should_extend(draft):
                break
        return draft


def _verdict(draft: Draft, sent: int, random: Random) -> VerifyResult:
    """What the target says to the first tokens; the one after them may be what was drafted there as well."""
    emitted: list[OutputToken] = []
    for sure in draft.confidence[:sent]:
        if random.random() >= sure:
            emitted.append(OutputToken(WRONG, Origin.RECOVERED))
            break
        emitted.append(OutputToken(RIGHT, Origin.ACCEPTED))
    accepted = sum(each.origin is Origin.ACCEPTED for each in emitted)
    if accepted == sent:
        same = sent == len(draft.tokens) or random.random() < draft.confidence[sent]
        emitted.append(OutputToken(RIGHT if same else WRONG, Origin.BONUS if sent else Origin.PLAIN))
    return VerifyResult(tuple(emitted), sent, min(sent, accepted + 1), accepted)


def rate_of_several(machine: Machine, accepted: Mapping[str, Callable[[int], float]], tokens: int) -> float:
    """Tokens a second of a reply for which a planner chooses between models, each with its own acceptance by place."""
    sources = {name: DrafterStats(machine.step) for name in accepted}
    planner = Planner(CostCurve(dict(machine.passes)), sources, AcceptanceMethod.GREEDY)
    random, curve, seconds, written = Random(1), CostCurve(dict(machine.passes)), 0.0, 0
    while written < tokens:
        count, draft = planner.max_draft_tokens(), Draft()
        if count and (name := planner.pick_drafter(dict.fromkeys(accepted, 1))):
            draft = machine.drafted(planner, accepted[name], written, name)
        verdict = _verdict(draft, planner.verify_length(draft), random)
        scoring, drafting = curve(verdict.drafted + 1), sum(draft.step_seconds)
        seconds += drafting + scoring
        written += len(verdict.emitted)
        planner.learn(RoundRecord(draft, verdict, drafting, scoring))
    return written / seconds
