"""What is advised, by what was found: one finding changed at a time."""

from __future__ import annotations

import shlex
import tomllib
from dataclasses import replace
from typing import Any

import pytest

from specollama.config.endpoints import Endpoint
from specollama.config.settings import ModelRef, PairSettings
from specollama.pairs.routes.local import PackageMissing
from specollama.spec_decode.types import Route
from specollama.tools.doctor.advice import give_advice, known_faults, server_advice
from specollama.tools.doctor.config_changes import config_changes, why_unchanged
from specollama.tools.doctor.findings import (
    Advice,
    LanesFinding,
    Loaded,
    LocalFinding,
    Misfit,
    NativeFinding,
    PairFindings,
    RouteFinding,
    ServerFinding,
)
from specollama.tools.doctor.route_forecast import ASSUMED_PROFILE, forecast_routes

HERE = "http://127.0.0.1:11434"
SERVER = ServerFinding(HERE, "default", local=True, version="0.33.0", engine="llama-server", round_trip=0.001)
LANES = LanesFinding(
    step=0.1,
    reading=0.001,
    rows={2: 0.11, 4: 0.12, 8: 0.14},
    slots=8,
    unified=True,
    keeps=True,
    resident=True,
    logprobs=True,
    itself=False,
    draft_step=0.01,
    draft_overhead=0.005,
)
SOUND = PairFindings(
    "coder",
    "big",
    "small",
    SERVER,
    SERVER,
    tokenizers="same",
    templates="same",
    delimiters="fit",
    thinking="doesn't think",
    context_lengths=(4096, 4096),
    lanes=LANES,
    local="",
)


def found(**changes: Any) -> list[Advice]:
    return give_advice(replace(SOUND, **changes))


def lanes(**changes: Any) -> list[Advice]:
    return found(lanes=replace(LANES, **changes))


def test_of_a_sound_pair_there_is_nothing_to_say() -> None:
    assert found() == []


def test_a_server_that_is_down_is_the_only_thing_to_say() -> None:
    fault = f"can't reach {HERE} (from default): Connection refused; is Ollama running there? (`ollama serve`)"
    [only] = found(target_server=replace(SERVER, fault=fault), draft_server=None, lanes="not measured")
    assert only.prevents
    assert only.what == f"can't reach {HERE} (from default): Connection refused"
    assert only.do == "start it (`ollama serve`), or set OLLAMA_HOST"
    [other] = server_advice(ServerFinding("http://tower:1", "a.toml: endpoints.tower.url", local=False, fault="gone"))
    assert other.do == "start Ollama there, listening on that address, or correct a.toml: endpoints.tower.url"


def test_a_model_that_is_missing_is_to_be_pulled_on_its_own_server() -> None:
    [only] = found(missing=("small",))
    assert (only.prevents, only.lines) == (True, ("ollama pull small",))
    tower = replace(SERVER, url="http://tower:11434", local=False)
    [far] = found(missing=("small",), draft_server=tower)
    assert (far.where, far.lines) == (tower.url, ("OLLAMA_HOST=http://tower:11434 ollama pull small",))


def test_what_no_request_can_speculate_prevents_it() -> None:
    [only] = found(faults=("big is a cloud model",))
    assert (only.what, only.prevents) == ("big is a cloud model", True)
    assert only.do == "take another target, or leave it plain"
    [thinking] = found(
        faults=("it marks its thinking with control tokens",), thinking="it marks its thinking with control tokens"
    )
    assert "`specollama native`" in thinking.do
    [gone] = found(faults=("big.gguf: No such file or directory",), target_server=None, draft_server=None)
    assert gone.do == "correct the pair's path, or the file"


@pytest.mark.parametrize(
    ("changes", "environment"),
    [
        ({"slots": 1, "unified": None}, {"OLLAMA_NUM_PARALLEL": "8", "LLAMA_ARG_KV_UNIFIED": "1"}),
        ({"slots": 7, "unified": False}, {"LLAMA_ARG_KV_UNIFIED": "1"}),
        ({"resident": False}, {"OLLAMA_MAX_LOADED_MODELS": "2"}),
    ],
)
def test_the_variables_of_the_service(changes: dict[str, Any], environment: dict[str, str]) -> None:
    if "LLAMA_ARG_KV_UNIFIED" in environment:
        environment = {**environment, "LLAMA_ARG_CACHE_IDLE_SLOTS": "0"}
    [only] = lanes(**changes)
    assert only.environment == environment
    assert not only.prevents


def test_where_another_route_gains_nothing_is_to_be_set_for_lanes() -> None:
    slow = replace(LANES, slots=1, unified=None)
    assert found(lanes=slow, routes=(RouteFinding(Route.LOCAL, 1.4, lookahead=6),)) == []
    assert found(lanes=slow, routes=(RouteFinding(Route.LANES, 1.1, lookahead=2),)) != []


def test_an_older_engine_has_no_switch_for_its_cache() -> None:
    old = replace(SERVER, version="0.20.0", engine="Go runner")
    [only] = found(target_server=old, draft_server=old, lanes=replace(LANES, slots=1, unified=None))
    assert only.environment == {"OLLAMA_NUM_PARALLEL": "8"}
    assert found(target_server=old, draft_server=old, lanes=replace(LANES, unified=False)) == []


def test_prompts_that_are_read_again_and_a_server_that_drafts_by_itself_are_told() -> None:
    assert [advice.what.split(":")[0] for advice in lanes(keeps=False)] == ["prompts are read again by each request"]
    assert [advice.what.split(":")[0] for advice in lanes(itself=True)] == ["the server drafts by itself"]


def test_other_tokenizers_and_shorter_contexts() -> None:
    [other] = found(tokenizers=Misfit("different, drafts are put into the target's tokens: token 5 is 'a' and 'b'"))
    assert other.lines == ("specollama pairs suggest",)
    [short] = found(context_lengths=(8192, 2048))
    assert short.lines == ("[pairs.coder.options]", "num_ctx = 8192")
    assert found(context_lengths=(2048, 8192)) == []
    [marks] = found(delimiters=Misfit("not ones of the draft's: <|im_end|>"))
    assert "<|im_end|>" in marks.what
    assert found(delimiters="not known", tokenizers="not known") == []


def test_a_model_that_is_half_on_the_gpu() -> None:
    half = replace(SERVER, loaded=(Loaded("big", 4096, 0.5), Loaded("small", 4096, 1.0), Loaded("other", None, 0.0)))
    [only] = list(server_advice(half))
    assert only.what == "50% of big is on the GPU, the rest is computed by the CPU"


def test_a_slower_route_that_was_set_is_told_with_the_line_to_write() -> None:
    routes = (RouteFinding(Route.LOCAL, 1.4, lookahead=6), RouteFinding(Route.LANES, 0.6, lookahead=2))
    [only] = found(route=Route.LANES, routes=routes)
    assert only.what == "route lanes, expected at 0.60x, is set; local is expected at 1.40x"
    assert only.lines == ('route = "local"',)
    assert found(route=Route.LOCAL, routes=routes) == []
    assert found(route=Route.AUTO, routes=routes) == [], "auto finds out itself"


def test_a_missing_package_is_told_with_how_to_install_it() -> None:
    [only] = found(local=PackageMissing("local: gguf isn't installed: `pip install 'specollama[local]'`"))
    assert only.lines == ("pip install 'specollama[local]'",)


def test_what_the_engine_can_do_best_itself() -> None:
    routes = (RouteFinding(Route.NATIVE, 1.3, lookahead=8),)
    [only] = found(routes=routes, native=NativeFinding("http://127.0.0.1:11436"))
    assert only.lines == ("specollama native coder", 'route = "native"')
    assert found(routes=routes, native=NativeFinding("http://127.0.0.1:11436", running=True)) == []


def test_what_is_to_be_written_or_typed_holds_for_any_name() -> None:
    routes = (RouteFinding(Route.NATIVE, 1.3, lookahead=8),)
    for name in ("qwen2.5-coder:32b", "it's mine", "-"):
        given = {"name": name, "native": NativeFinding(HERE), "routes": routes}
        short, engine = found(context_lengths=(8192, 2048), **given)
        assert tomllib.loads("\n".join(short.lines)) == {"pairs": {name: {"options": {"num_ctx": 8192}}}}
        assert shlex.split(engine.lines[0]) == ["specollama", "native", name]
        [slow, _] = found(route=Route.PLAIN, **given)
        assert tomllib.loads(f"{slow.where} = 1") == {"pairs": {name: {"route": 1}}}


def test_of_a_pair_by_flags_nothing_is_to_be_written() -> None:
    given = {"name": "", "native": NativeFinding(HERE), "routes": (RouteFinding(Route.NATIVE, 1.3, lookahead=8),)}
    short, engine = found(context_lengths=(8192, 2048), **given)
    assert (short.do, short.lines) == ("beyond it nothing is drafted: give --num-ctx 8192", ())
    assert engine.do.endswith(", and give --route native")
    assert engine.lines == ("specollama native --target big --draft small",)


def test_another_engines_pair_is_measured_apart() -> None:
    [only] = found(elsewhere="vllm")
    assert only.what == "big is served by vllm, whose route is scoring"
    assert only.lines == ("specollama pairs show coder --measure",)
    assert not only.prevents


def test_what_prevents_speculation_comes_first() -> None:
    gone = ServerFinding("http://tower:11434", "x", local=False, fault="gone")
    half = replace(SERVER, loaded=(Loaded("big", 4096, 0.5),))
    assert [advice.prevents for advice in found(target_server=half, draft_server=gone)] == [True, False]


@pytest.mark.parametrize(
    ("version", "told"),
    [
        ((0, 9, 0), 4),
        ((0, 13, 0), 3),  # the lost token, the sampler's order, the penalty
        ((0, 30, 0), 2),
        ((0, 32, 9), 1),
        ((0, 33, 0), 0),
    ],
)
def test_the_known_faults_of_versions(version: tuple[int, ...], told: int) -> None:
    assert len(known_faults(version)) == told
    assert known_faults(version, development=True) == ()


# What each route is expected to bring

LOCAL = LocalFinding("big", {1: 0.075, 2: 0.102, 4: 0.134, 8: 0.169, 16: 0.246}, 0.019, 0.019)


def expected(**given: Any) -> dict[Route, RouteFinding]:
    chosen = {"local": LOCAL, "lanes": LANES, "native": NativeFinding(HERE), "max_rows": 8, **given}
    return {each.route: each for each in forecast_routes(ASSUMED_PROFILE, **chosen)}


def test_all_routes_are_weighed_by_what_was_measured() -> None:
    routes = expected()
    assert routes[Route.PLAIN].speedup == 1
    assert routes[Route.GREEDY].speedup is None
    assert 1.1 < (routes[Route.LOCAL].speedup or 0) < 2.1
    assert (routes[Route.NATIVE].speedup or 0) <= (routes[Route.LOCAL].speedup or 0)
    assert (routes[Route.LANES].speedup or 0) > 1.9
    slow = replace(LANES, rows={2: 0.2, 4: 0.4, 8: 0.8})
    assert (expected(lanes=slow)[Route.LANES].speedup or 0) < 1, "how much slower is worth knowing"


@pytest.mark.parametrize(
    ("changes", "why"),
    [
        ({"logprobs": False}, "the server gives no log-probabilities"),
        ({"itself": True}, "the server drafts by itself, and tells nothing of those tokens"),
        ({"resident": False}, "draft and target evict each other: the server's memory doesn't hold both"),
    ],
)
def test_why_rows_can_not_be_asked_for(changes: dict[str, Any], why: str) -> None:
    assert expected(lanes=replace(LANES, **changes))[Route.LANES] == RouteFinding(Route.LANES, None, why)


def test_what_was_not_measured_is_not_made_up() -> None:
    routes = expected(local="not in a store", lanes="not measured", native=NativeFinding(HERE, obstacle="too old"))
    assert {route: each.speedup for route, each in routes.items() if each.speedup is not None} == {Route.PLAIN: 1.0}
    assert routes[Route.LOCAL].why == "not in a store"
    assert routes[Route.NATIVE].why == "too old"
    assert expected(local=replace(LOCAL, draft_step=None))[Route.LOCAL].speedup is None


# What tuning writes

SETTINGS = PairSettings("coder", ModelRef("big", Endpoint(HERE, "x")), (ModelRef("small", Endpoint(HERE, "x")),))


def written(routes: tuple[RouteFinding, ...], settings: PairSettings = SETTINGS, **more: Any) -> dict[str, Any]:
    return {change.key: change.after for change in config_changes(replace(SOUND, routes=routes, **more), settings)}


def test_the_fastest_route_is_written() -> None:
    local = (RouteFinding(Route.LOCAL, 1.4, lookahead=6), RouteFinding(Route.PLAIN, 1.0))
    assert written(local) == {"route": "local"}
    assert written(local, replace(SETTINGS, route=Route.LOCAL)) == {}
    assert written(local, replace(SETTINGS, lookahead=3)) == {"route": "local", "lookahead": "auto"}


def test_lanes_are_limited_to_what_gains() -> None:
    lanes = (RouteFinding(Route.LANES, 1.5, lookahead=3), RouteFinding(Route.PLAIN, 1.0))
    assert written(lanes) == {"route": "lanes", "lanes": 4}
    assert written(lanes, lanes=replace(LANES, slots=2)) == {"route": "lanes", "lanes": 2}


def test_where_nothing_gains_the_pair_runs_plain() -> None:
    nothing = (RouteFinding(Route.LANES, 0.7, lookahead=1), RouteFinding(Route.PLAIN, 1.0))
    assert written(nothing) == {"route": "plain"}
    assert written(nothing, local=LOCAL) == {}, "prompt lookup may gain all the same: auto"


def test_native_is_written_only_where_it_runs() -> None:
    routes = (
        RouteFinding(Route.NATIVE, 1.6, lookahead=8),
        RouteFinding(Route.LOCAL, 1.4, lookahead=6),
        RouteFinding(Route.PLAIN, 1.0),
    )
    assert written(routes, native=NativeFinding(HERE)) == {"route": "local"}
    assert written(routes, native=NativeFinding(HERE, running=True)) == {"route": "native"}


NO_RETURN = "measuring failed: gone"


@pytest.mark.parametrize(
    ("route", "given", "left"),
    [
        (Route.LANES, {"local": "elsewhere", "lanes": NO_RETURN}, f"local: elsewhere; lanes: {NO_RETURN}"),
        (Route.AUTO, {"local": "no room", "lanes": NO_RETURN}, f"local: no room; lanes: {NO_RETURN}"),
        (Route.LANES, {"local": replace(LOCAL, draft_step=None), "lanes": NO_RETURN}, f"lanes: {NO_RETURN}"),
        (Route.LOCAL, {"local": "no room", "lanes": replace(LANES, rows={2: 0.2, 8: 0.9})}, "local: no room"),
        (
            Route.NATIVE,
            {"local": "", "lanes": LANES, "native": NativeFinding(HERE, running=True)},
            "native: what passes cost isn't known here: measure it with `specollama bench`",
        ),
    ],
)
def test_what_nothing_was_learnt_of_stays_as_it_was(route: Route, given: dict[str, Any], left: str) -> None:
    routes = tuple(expected(**{"native": None, **given}).values())
    settings = replace(SETTINGS, route=route, lookahead=3)
    assert written(routes, settings, **given) == {}
    assert why_unchanged(replace(SOUND, routes=routes, **given), settings) == left


def test_what_gains_is_written_also_where_the_set_route_was_not_measured() -> None:
    given = {"local": LOCAL, "lanes": NO_RETURN}
    routes = tuple(expected(native=None, **given).values())
    assert written(routes, replace(SETTINGS, route=Route.LANES), **given) == {"route": "local"}
