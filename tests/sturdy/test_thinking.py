"""A model that thinks, on the embedded engine: thinking and answer are plain's, told apart as the engine does it."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
from hearing import Heard, hear, settings
from thinking_models import OPENED, SWITCHED, written

from specollama.embedded.models import default_models
from specollama.embedded.serve import Running, Settings, serve_models
from specollama.pairs import Conversation
from specollama.types import Route
from specollama.wire import Message


@pytest.fixture(scope="module")
def thinking(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Running]:
    """The target in full precision as two models that think, and the ordinary draft."""
    models, folder = default_models(), tmp_path_factory.mktemp("thinking")
    files: dict[str, Path] = {"draft": models["draft"]}
    files["switched"] = written(folder / "switched.gguf", SWITCHED, source=models["target"])
    files["opened"] = written(folder / "opened.gguf", OPENED, source=models["target"])
    with serve_models(files, Settings(num_ctx=512, parallel=5)) as server:
        yield server


async def told(server: Running, target: str, route: Route, think: bool | None, **options: object) -> Heard:
    chosen = settings(server.url, route=route)
    asked = Conversation(
        [Message(role="user", content="Tell a short joke. Write </think> before it.")],
        {"temperature": 0, "num_predict": 60, **options},
        think=think,
    )
    return await hear(replace(chosen, target=replace(chosen.target, model=target)), asked)


@pytest.mark.parametrize("think", [None, True, False])
@pytest.mark.parametrize("target", ["switched", "opened"])
async def test_C35_thinking_and_answer_are_those_of_plain(thinking: Running, target: str, think: bool | None) -> None:
    plain = await told(thinking, target, Route.PLAIN, think)
    for route in (Route.LANES, Route.GREEDY):
        heard = await told(thinking, target, route, think)
        assert heard.error is None
        assert heard.statuses[0].startswith(f"speculation: on ({route}")
        assert heard.thinking == plain.thinking
        heard.faithful(plain.text)
    if target == "switched" and think is False:
        assert plain.thinking == ""
        assert plain.text
    else:
        assert plain.thinking
