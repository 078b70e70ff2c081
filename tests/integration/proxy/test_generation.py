"""One reading of the configuration: how long its connections stay open, and which server a model's name leads to."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from specollama.config.loading import load_config
from specollama.server.proxy.config_generation import ConfigGeneration, PinnedConfig, generation_of
from tests.support.configured import written
from tests.support.serving import replayed, send_answer, whole

Up = Callable[[Any], str]


@dataclass
class Listing:
    """A server that has these models. `asked`: how often it was asked which."""

    names: list[Any]
    asked: int = 0

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        self.asked += 1
        await send_answer(whole({"models": [{"name": name} for name in self.names]}), send)


@pytest.fixture
def generation(tmp_path: Path) -> Callable[..., ConfigGeneration]:
    """Of a configuration whose default server is at a URL. `host`: OLLAMA_HOST."""

    def make(url: str = "http://127.0.0.1:9", host: str = "", **parts: str) -> ConfigGeneration:
        return ConfigGeneration(load_config(written(tmp_path, url, **parts)), {"OLLAMA_HOST": host}, token=None)

    return make


def closed(generation: ConfigGeneration) -> bool:
    """Whether its connections are; they are closed together or not at all."""
    states = {upstream.http.is_closed for upstream in generation.upstreams.values()}
    assert len(states) == 1
    return states.pop()


def named(name: str, url: str) -> str:
    return f'[endpoints.{name}]\nurl = "{url}"\n'


async def test_a_retired_configuration_is_closed_with_the_last_request_that_uses_it(
    generation: Callable[..., ConfigGeneration],
) -> None:
    old = await generation().open()
    async with old.use():
        async with old.use():
            await old.retire()
            assert not closed(old)
        assert not closed(old)
    assert closed(old)


async def test_a_retired_configuration_that_no_request_uses_is_closed_at_once(
    generation: Callable[..., ConfigGeneration],
) -> None:
    old = await generation(more=named("attic", "http://127.0.0.1:10")).open()
    async with old.use():
        pass
    assert len(old.upstreams) == 2
    assert not closed(old)
    await old.retire()
    assert closed(old)


async def test_a_request_keeps_to_the_configuration_that_it_began_with(
    generation: Callable[..., ConfigGeneration],
) -> None:
    old, new = await generation().open(), await generation().open()
    current, seen = [old], list[ConfigGeneration]()

    async def app(scope: Any, receive: Any, send: Any) -> None:
        current[0] = new
        await old.retire()
        seen.append(generation_of(Request(scope)))
        assert not closed(old)

    class Request:
        def __init__(self, scope: Any) -> None:
            self.scope = scope

    await PinnedConfig(app, current=lambda: current[0])({"type": "http"}, None, None)  # type: ignore[arg-type]
    assert seen == [old]
    assert closed(old)
    await new.retire()


async def test_what_is_no_request_uses_no_configuration(generation: Callable[..., ConfigGeneration]) -> None:
    scopes = list[Any]()

    async def app(scope: Any, receive: Any, send: Any) -> None:
        scopes.append(scope)

    def none_yet() -> ConfigGeneration:
        raise AssertionError("asked before the server has begun")

    await PinnedConfig(app, current=none_yet)({"type": "lifespan"}, None, None)  # type: ignore[arg-type]
    assert scopes == [{"type": "lifespan"}]


async def test_the_rest_is_asked_of_the_server_that_has_the_pairs_target(
    generation: Callable[..., ConfigGeneration], tmp_path: Path
) -> None:
    more = named("attic", "http://127.0.0.1:10") + (
        '[pairs.far]\ntarget = { model = "target", endpoint = "attic" }\nroute = "plain"\n'
        f'[pairs.file]\ntarget = {{ path = "{tmp_path / "target.gguf"}" }}\nroute = "plain"\n'
    )
    opened = generation(more=more)
    found = {name: opened.upstream_of(pair).endpoint.url for name, pair in opened.pool.pairs.items()}
    assert found == {"duo": "http://127.0.0.1:9", "far": "http://127.0.0.1:10", "file": "http://127.0.0.1:9"}


async def test_servers_are_looked_up_default_first_and_engines_of_another_kind_not_at_all(
    generation: Callable[..., ConfigGeneration],
) -> None:
    more = named("attic", "http://127.0.0.1:10") + named("rack", "http://127.0.0.1:11")
    more += '[pairs.scored]\ntarget = { model = "target", endpoint = "rack", api = "vllm" }\nroute = "plain"\n'
    more += '[pairs.far]\ntarget = { model = "target" }\nroute = "plain"\n'
    opened = generation(host="127.0.0.1:12", more=more)
    assert list(opened.upstreams) == [f"http://127.0.0.1:{port}" for port in (9, 10, 12)]


async def test_the_default_server_comes_first_wherever_it_stands_in_the_file(
    generation: Callable[..., ConfigGeneration], tmp_path: Path
) -> None:
    file = written(tmp_path, "http://127.0.0.1:9")
    file.write_text(named("attic", "http://127.0.0.1:10") + file.read_text())
    opened = ConfigGeneration(load_config(file), {}, token=None)
    assert list(opened.upstreams) == ["http://127.0.0.1:9", "http://127.0.0.1:10"]


async def test_models_of_one_name_are_listed_under_names_of_their_own(
    generation: Callable[..., ConfigGeneration], up: Up
) -> None:
    ours, attic, cellar = Listing(["a", "b:latest"]), Listing(["a:latest", "b"]), Listing(["a", "c"])
    more = named("attic", up(attic)) + named("cellar", up(cellar))
    opened = await generation(up(ours), more=more).open()
    listed = [(entry["name"], upstream.name, own) for entry, upstream, own in await opened.models()]
    assert listed == [
        ("a", "server", "a"),
        ("b:latest", "server", "b:latest"),
        ("a:latest@attic", "attic", "a:latest"),
        ("b@attic", "attic", "b"),
        ("a@cellar", "cellar", "a"),
        ("c", "cellar", "c"),
    ]
    places = [
        await opened.locate_model(name) for name in ("a", "a:latest@attic", "b@attic", "c", "c:latest", "none", None)
    ]
    assert [(upstream.name, own) for upstream, own in places] == [
        ("server", None),
        ("attic", "a:latest"),
        ("attic", "b"),
        ("cellar", "c"),
        ("cellar", "c"),
        ("server", None),
        ("server", None),
    ]
    await opened.retire()


async def test_where_a_model_is_is_asked_once_for_many_requests_and_again_after_a_while(
    generation: Callable[..., ConfigGeneration], up: Up, monkeypatch: pytest.MonkeyPatch
) -> None:
    now = 100.0
    monkeypatch.setattr("specollama.server.proxy.config_generation.monotonic", lambda: now)
    ours, attic = Listing(["a"]), Listing(["b"])
    opened = await generation(up(ours), more=named("attic", up(attic))).open()
    for _ in range(3):
        assert (await opened.locate_model("b"))[0].name == "attic"
        now += 10
    assert (ours.asked, attic.asked) == (1, 1)
    attic.names = ["c"]
    now += 10
    assert (await opened.locate_model("c"))[0].name == "attic"
    assert (await opened.locate_model("b"))[0].name == "server"
    assert (ours.asked, attic.asked) == (2, 2)
    await opened.retire()


async def test_what_has_no_name_is_left_out_of_the_list(generation: Callable[..., ConfigGeneration], up: Up) -> None:
    answer = whole({"models": [{"name": "a"}, {"name": ""}, {"model": "b"}, "c"]})
    opened = await generation(up(replayed(tags=answer))).open()
    assert [entry["name"] for entry, _, _ in await opened.models()] == ["a"]
    await opened.retire()
