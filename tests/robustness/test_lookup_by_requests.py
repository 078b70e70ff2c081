"""Prompt lookup where the target is reached by requests: alone, and ahead of a draft model."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from specollama.config.settings import FileRef, PairSettings, PromptLookup
from specollama.errors import UnsupportedPair
from specollama.pairs.pair import Pair
from specollama.spec_decode.types import AcceptanceMethod, Route
from specollama.tools.doctor.pair_status import pair_status
from tests.support.hearing import hear, heard, question, settings
from tests.support.scripted_ollama import ScriptedModel, ScriptedOllama, pieces

TWICE = "Here it is: one two three four five six seven eight. Once more it is: one two three four five six seven eight."
COUNTED = "Repeat: one two three four five one two three four five one two three four five"  # no near-ties
REPEAT = question(COUNTED, num_predict=24)
Serve = Callable[[Any], str]


@pytest.fixture
def twice() -> ScriptedOllama:
    """A target that says the same twice, and a draft model that knows it as well, but for some slips."""
    text = pieces(TWICE)
    return ScriptedOllama({"target": ScriptedModel(text), "draft": ScriptedModel(text, slips=5)})


def alone(url: str, **chosen: Any) -> PairSettings:
    return replace(settings(url, **chosen), drafts=(PromptLookup.LOOKUP,))


async def test_alone_it_drafts_what_was_written_before_and_asks_no_model(twice: ScriptedOllama, serve: Serve) -> None:
    told = await hear(alone(serve(twice)))
    told.faithful(TWICE)
    assert told.statuses[0].startswith("speculation: on (lanes, lookahead 4")
    assert told.stats.accepted >= 5
    assert told.stats.rows > told.stats.rounds
    assert not twice.asked("/api/generate", "draft")
    assert not twice.asked("/api/show", "draft")


async def test_what_is_known_of_the_target_is_asked_once_for_several_replies(
    twice: ScriptedOllama, serve: Serve
) -> None:
    async with Pair(alone(serve(twice)), {}) as pair:
        for _ in range(3):
            (await heard(pair, question())).faithful(TWICE)
    assert len([call for call in twice.asked("/api/show") if not call.body.get("verbose")]) == 1


async def test_the_greedy_route_measures_the_draft_model_alone(twice: ScriptedOllama, serve: Serve) -> None:
    url = serve(twice)
    told = await hear(settings(url, route=Route.GREEDY))
    asked = len(twice.asked("/api/generate", "draft"))
    told.faithful(TWICE)
    assert asked == told.stats.draft_requests


async def test_a_file_that_does_not_draft_is_told(twice: ScriptedOllama, serve: Serve) -> None:
    chosen = replace(alone(serve(twice)), drafts=(PromptLookup.LOOKUP, FileRef(Path("small.gguf"))))
    told = await hear(chosen)
    told.faithful(TWICE)
    assert told.statuses[0].endswith("; small.gguf drafts only for a target that is opened in process)")


async def test_a_draft_model_is_asked_only_where_lookup_has_nothing(twice: ScriptedOllama, serve: Serve) -> None:
    url = serve(twice)
    model = await hear(replace(settings(url), drafts=settings(url).drafts * 2))  # of two, neither is alone
    asked = len(twice.asked("/api/generate", "draft"))
    both = await hear(settings(url))
    model.faithful(TWICE)
    both.faithful(TWICE)
    assert len(twice.asked("/api/generate", "draft")) - asked < asked
    assert model.stats.accepted > 0
    assert both.stats.accepted > 0


async def test_drafting_ahead_goes_on_beside_it(twice: ScriptedOllama, serve: Serve) -> None:
    told = await hear(settings(serve(twice), draft_ahead=True))
    told.faithful(TWICE)
    assert "drafting ahead" in told.statuses[0]


@pytest.mark.parametrize("route", [Route.LANES, Route.GREEDY])
async def test_on_the_engine_the_text_is_plains(embedded_url: str, route: Route) -> None:
    plain = await hear(settings(embedded_url, route=Route.PLAIN), REPEAT)
    told = await hear(alone(embedded_url, route=route), REPEAT)
    told.faithful(plain.text)
    assert told.stats.accepted > 0


async def test_with_a_seed_the_reply_is_that_of_the_match_rule_with_a_model(embedded_url: str) -> None:
    asked = question(COUNTED, temperature=0.4, seed=7, num_predict=24)
    ours, theirs = await hear(alone(embedded_url), asked), await hear(settings(embedded_url), asked)
    assert ours.text == theirs.text
    assert ours.stats.route is theirs.stats.route is Route.LANES


async def test_auto_measures_the_target_alone(embedded_url: str) -> None:
    told = await hear(alone(embedded_url, route=Route.AUTO, lookahead="auto"), REPEAT)
    assert told.error is None
    assert "no draft model" not in told.statuses[0]
    found = await pair_status(alone(embedded_url, route=Route.AUTO), {}, measure=True)
    assert (found.draft, found.tokenizers) == (None, "no draft model")
    assert found.measured
    assert found.measured["draft"] == 0
    assert found.slots


async def test_rejection_is_refused_where_nothing_is_drawn(embedded_url: str) -> None:
    with pytest.raises(UnsupportedPair, match="prompt lookup draws from nothing"):
        await hear(alone(embedded_url, rule=AcceptanceMethod.REJECTION), question(temperature=1))
