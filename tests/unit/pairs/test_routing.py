"""The route of a reply follows from the facts alone, and a fact that is missing is named."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from specollama.backends.ollama.slot_probe import SlotProbe
from specollama.config.endpoints import Endpoint
from specollama.config.settings import FileRef, ModelRef, PairSettings
from specollama.errors import UnsupportedPair
from specollama.pairs.feasibility import ReplyContext
from specollama.pairs.request import ChatInput
from specollama.pairs.routing import MissingFact, RouteFacts, ServedPrompt, choose_route
from specollama.pairs.tokenizers import TokenizerMatch
from specollama.spec_decode.types import AcceptanceMethod, Route, ServerApi
from tests.support.made_up_models import model

HERE = Endpoint("http://t", "a test")
SETTINGS = PairSettings(None, ModelRef("t", HERE), (ModelRef("d", HERE),), options={"temperature": 0})
FAST = SlotProbe(
    round_trip=0.001,
    step=0.1,
    reading=0.0001,
    rows=0.11,
    equal_rows=0.11,
    draft=0.02,
    slots=8,
    resident=True,
    holes=False,
    row_tokens=1,
)
Facts = Callable[..., RouteFacts]


def facts(settings: PairSettings = SETTINGS, *, described: bool = True, **known: Any) -> RouteFacts:
    context = ReplyContext(settings, ChatInput([]), model() if described else None)
    return RouteFacts(context, **{"draft": model(), **known} if described else known)


WHOLE = {
    "local": "",
    "tokenizers": TokenizerMatch(why_not_exact="no vocabulary"),
    "prompt": ServedPrompt("Hello", 5, 100),
    "probe": FAST,
}


def test_facts_are_asked_for_one_after_another_the_cheap_ones_first() -> None:
    known: dict[str, Any] = {}
    order = list[MissingFact]()
    assert choose_route(facts(described=False)).missing is MissingFact.TARGET
    while missing := choose_route(facts(**known)).missing:
        order.append(missing)
        known[missing.value] = WHOLE[missing.value]
    assert order == [MissingFact.LOCAL, MissingFact.TOKENIZERS, MissingFact.PROMPT, MissingFact.PROBE]
    assert choose_route(facts(**known)).route is Route.LANES


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({"draft": "no draft model"}, "no draft model"),
        ({"prompt": "no prompt"}, "no prompt"),
        ({"prompt": ServedPrompt("<s>Hello", 5)}, "the begin marker may come twice"),
        ({"probe": "the pair is being measured"}, "the pair is being measured"),
        ({"probe": FAST.model_copy(update={"resident": False})}, "draft and target evict each other"),
        ({"probe": FAST.model_copy(update={"rows": 0.5})}, "lanes don't pay here"),
        ({"prompt": ServedPrompt("Hello", 10**6)}, "8 lanes would read the prompt"),
    ],
)
def test_each_obstacle_to_requests_for_rows_is_the_reason_to_run_plain(change: dict[str, Any], reason: str) -> None:
    choice = choose_route(facts(**{**WHOLE, **change}))
    assert (choice.route, choice.missing) == (Route.PLAIN, None)
    assert choice.reason.startswith(reason)


def test_why_the_target_is_not_opened_in_process_stands_behind_the_reason() -> None:
    known = {**WHOLE, "local": "local: no package", "probe": "not measured"}
    assert choose_route(facts(**known)).reason == "not measured; local: no package"
    assert choose_route(facts(**{**known, "probe": "local: no package"})).reason == "local: no package"


def test_a_target_that_can_be_opened_in_process_is() -> None:
    choice = choose_route(facts(local=Path("/models/t.gguf")))
    assert (choice.route, choice.reason) == (Route.LOCAL, "opened in process: /models/t.gguf")
    alone = choose_route(facts(described=False, local=Path("/models/t.gguf")))  # its server can't be reached
    assert (alone.route, alone.missing) == (Route.LOCAL, None)


def test_a_forced_route_is_taken_without_a_measurement() -> None:
    for route in (Route.LANES, Route.GREEDY):
        known = {name: fact for name, fact in WHOLE.items() if name not in ("probe", "local")}
        choice = choose_route(facts(replace(SETTINGS, route=route), **known))
        assert (choice.route, choice.missing) == (route, None)
    assert choose_route(facts(replace(SETTINGS, route=Route.NATIVE), described=False)).route is Route.NATIVE
    forced = choose_route(facts(replace(SETTINGS, route=Route.LOCAL), local="local: no package"))
    assert (forced.route, forced.reason) == (Route.PLAIN, "local: no package")


@pytest.mark.parametrize(
    ("settings", "known", "route"),
    [
        (replace(SETTINGS, target=FileRef(Path("t.gguf"))), {}, Route.LOCAL),
        (SETTINGS, {"engine": ServerApi.VLLM}, Route.SCORING),
    ],
)
def test_a_target_without_an_ollama_has_one_route_which_answers_plain_replies_too(
    settings: PairSettings, known: dict[str, Any], route: Route
) -> None:
    assert choose_route(facts(settings, described=False, **known)).planned_by is route
    off = choose_route(facts(replace(settings, lookahead=0), described=False, **known))
    assert (off.route, off.planned_by, off.reason) == (Route.PLAIN, route, "lookahead is 0")


def test_what_can_not_be_lossless_is_refused_before_anything_is_measured() -> None:
    seeded = replace(SETTINGS, rule=AcceptanceMethod.REJECTION, options={"temperature": 0.8, "seed": 1})
    known = {name: fact for name, fact in WHOLE.items() if name != "probe"}
    with pytest.raises(UnsupportedPair, match="a seed asks for a reply that doesn't depend on the draft"):
        choose_route(facts(seeded, **known))
    with pytest.raises(UnsupportedPair, match="Ollama's API can't score given tokens"):
        choose_route(facts(replace(SETTINGS, route=Route.SCORING)))
