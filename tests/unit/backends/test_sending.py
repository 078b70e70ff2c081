"""Of a draft only the beginning that the lookahead asks for is sent to be scored."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import pytest

from specollama.backends.scripted import ScriptedDrafter, ScriptedTarget, fixed_script
from specollama.spec_decode.types import AcceptanceMethod, Draft, RoundRecord, SamplingOptions
from tests.support.scripted_runs import events, reply, speculation

COLD = SamplingOptions(temperature=0, num_predict=7)


@dataclass
class Sending:
    """Three tokens are drafted in each round, and so many of them sent."""

    count: int
    rounds: list[RoundRecord] = field(default_factory=list)

    def max_draft_tokens(self) -> int:
        return 3

    def verify_length(self, draft: Draft) -> int:
        return min(self.count, len(draft.tokens))

    def accept_probabilities(self, draft: Draft) -> Sequence[float]:
        return ()

    def learn(self, round: RoundRecord) -> None:
        self.rounds.append(round)


@pytest.mark.parametrize("count", [0, 1, 2, 3])
async def test_no_more_of_a_draft_is_scored_than_is_to_be_sent(count: int) -> None:
    script, lookahead = fixed_script(*"abcdefgh"), Sending(count)
    target, drafter = ScriptedTarget(script, COLD, 0), ScriptedDrafter(script, COLD, 0)
    run = speculation(target, drafter, COLD, lookahead=lookahead, rule=AcceptanceMethod.GREEDY)
    told = reply(await events(run))
    assert told.text == "abcdefg"
    first = lookahead.rounds[0]
    assert (len(first.draft.tokens), first.result.drafted, first.result.accepted) == (3, count, count)
    assert len(first.result.emitted) == count + 1
    assert run.stats.rows == sum(round.result.drafted + 1 for round in lookahead.rounds)
