"""What the loop tells of a round: its number, the rows that were asked, and the tokens that patience is shown."""

from __future__ import annotations

from dataclasses import dataclass, field, replace

from specollama.backends.scripted import End, Hidden, Script, ScriptedDrafter, ScriptedTarget, fixed_script
from specollama.spec_decode.events import Text
from specollama.spec_decode.lookahead import FixedLookahead, SpeculationMonitor
from specollama.spec_decode.types import AcceptanceMethod, Draft, SamplingOptions, TargetScores, VerifyResult
from tests.support.scripted_runs import events, reply, speculation

COLD = SamplingOptions(temperature=0, num_predict=7)


def run(script: Script, target: type[ScriptedTarget] = ScriptedTarget, **more: object):  # type: ignore[no-untyped-def]
    options = more.pop("options", COLD)
    drafter = ScriptedDrafter(script, options, 0)
    return speculation(target(script, options, 0), drafter, options, rule=AcceptanceMethod.GREEDY, **more)  # type: ignore[arg-type]


async def test_a_piece_has_its_rounds_number_and_none_where_nothing_was_drafted() -> None:
    drafted = [event.round for event in await events(run(fixed_script(*"abcdefgh"))) if isinstance(event, Text)]
    assert drafted == [1] * 5 + [2] * 2
    alone = run(fixed_script(*"abcdefgh"), lookahead=FixedLookahead(0))
    assert [event.round for event in await events(alone) if isinstance(event, Text)] == [0] * 7


class First(ScriptedTarget):
    """Gives the first of the rows that were asked of it."""

    async def score(self, draft: Draft) -> TargetScores:
        scored = await super().score(draft)
        return replace(scored, rows={0: scored.rows[0]})


async def test_rows_count_as_they_are_asked_whether_they_are_used_or_not() -> None:
    speculated = run(fixed_script(*"abcdefgh"), First)
    assert reply(await events(speculated)).text == "abcdefg"
    assert speculated.stats.rows == 5 + 5 + 5 + 4 + 3 + 2 + 1


@dataclass
class Watching(SpeculationMonitor):
    """Notes the tokens of each round."""

    tokens: list[int] = field(default_factory=list)

    def observe(self, verdict: VerifyResult, tokens: int, seconds: float) -> None:
        self.tokens.append(tokens)


async def test_patience_is_shown_the_tokens_that_the_target_wrote_alone_as_well() -> None:
    def script(said: str) -> dict[object, float]:
        return {{0: "a", 1: Hidden("é"), 2: "b"}.get(len(said), End()): 1.0}

    patience = Watching()
    found = reply(await events(run(script, patience=patience)))  # type: ignore[arg-type]
    assert found.text == "aéb"
    assert patience.tokens[0] == 2, "a and é"


async def test_a_limit_of_0_tokens_is_none() -> None:
    found = reply(await events(run(fixed_script(*"abc"), options=replace(COLD, num_predict=0))))
    assert (found.text, str(found.reason)) == ("abc", "stop")
