"""The public fake: it draws what its script says, and shows what a server would."""

from __future__ import annotations

from dataclasses import replace

import pytest

from specollama.backends.scripted import (
    End,
    Hidden,
    Outcome,
    Script,
    ScriptedDrafter,
    ScriptedTarget,
    constant_script,
    fixed_script,
)
from specollama.spec_decode.types import DoneReason, Draft, Origin, OutputToken, SamplingOptions, Token, VerifyResult

COLD = SamplingOptions(temperature=0)
WARM = SamplingOptions(temperature=1, top_k=4, top_p=1)
TABLE: dict[Outcome, float] = {"a": 0.4, "b": 0.3, Hidden("é"): 0.2, End(): 0.1}


async def streamed(target: ScriptedTarget, limit: int | None) -> list[str | DoneReason | None]:
    return [item.text if isinstance(item, Token) else item.end async for item in target.stream(limit)]


def target(script: Script, options: SamplingOptions = COLD, seed: int = 1) -> ScriptedTarget:
    return ScriptedTarget(script, options, seed)


async def test_a_script_is_written_token_by_token_and_ends() -> None:
    assert await streamed(target(fixed_script("Hel", "lo")), None) == ["Hel", "lo", DoneReason.STOP]


async def test_a_limit_ends_the_stream_before_the_script_does() -> None:
    assert await streamed(target(fixed_script("Hel", "lo")), 1) == ["Hel", DoneReason.LENGTH]
    assert await streamed(target(fixed_script("Hel", "lo")), 0) == [DoneReason.LENGTH]


async def test_a_reply_that_left_the_script_ends() -> None:
    script = fixed_script("ab", "c")
    assert script("a") == {End(): 1.0}


async def test_a_draft_of_n_tokens_has_n_and_one_rows_at_the_ends_of_its_tokens() -> None:
    scored = await target(fixed_script("ab", "c")).score(Draft((Token("ab"), Token("c"))))
    assert scored.rows_requested == 3
    assert {offset: row.sample for offset, row in scored.rows.items()} == {0: Token("ab"), 2: Token("c"), 3: None}
    assert scored.rows[3].end


async def test_a_row_shows_the_tokens_and_hides_what_has_no_text() -> None:
    row = (await target(constant_script(TABLE), WARM, seed=2).score(Draft())).rows[0]
    assert row.sample is not None
    assert [token.text for token in row.top] == ["a", "b", "", ""]
    assert row.p == pytest.approx({"a": 4 / 7, "b": 3 / 7})


async def test_a_row_shows_no_more_tokens_than_a_server_would() -> None:
    short = ScriptedTarget(constant_script({"a": 0.7, "b": 0.3}), WARM, 1, shown=1)
    row = (await short.score(Draft())).rows[0]
    assert [token.text for token in row.top] == ["a"]
    assert row.p is None


async def test_a_hidden_token_is_fetched_by_the_same_draw() -> None:
    script = constant_script({Hidden("é"): 1.0})
    hiding = target(script)
    assert (await hiding.score(Draft())).rows[0].hidden
    continuation = await hiding.commit(VerifyResult(hidden=True), None)
    assert (continuation.tokens, continuation.sampled) == ((Token("é"),), 1)


async def test_what_is_drawn_at_a_place_depends_on_the_seed_and_the_place_alone() -> None:
    options = replace(WARM, top_k=3)
    script = constant_script({"a": 0.5, "b": 0.3, Hidden("é"): 0.2})
    first, again, other = [await streamed(target(script, options, seed), 40) for seed in (5, 5, 6)]
    assert first == again
    assert first != other
    late = target(script, options, 5)
    await late.commit(VerifyResult((OutputToken(Token("x"), Origin.BONUS),) * 3), None)
    assert await streamed(late, 40 - 3) == first[3:]


async def test_a_drafter_goes_on_from_the_reply_and_tells_what_it_drew_from() -> None:
    drafter = ScriptedDrafter(fixed_script("a", "b", "c"), COLD, 1, prompt="Q: ")
    assert await drafter.propose("Q: a", 5) == Draft((Token("b"), Token("c")), ({"b": 1.0}, {"c": 1.0}))
    assert await drafter.propose("Q: a", 1) == Draft((Token("b"),), ({"b": 1.0},))


async def test_a_drafter_stops_before_a_token_without_text() -> None:
    places: dict[str, dict[Outcome, float]] = {"": {"a": 1.0}, "a": {Hidden("é"): 1.0}}
    assert (await ScriptedDrafter(lambda text: places[text], COLD, 1).propose("", 5)).text == "a"
