"""A model that thinks, on the embedded engine: thinking and answer are plain's, told apart as the engine does it."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from specollama.backends.ollama.schema import Message
from specollama.pairs.request import ChatInput
from specollama.server.embedded.default_models import default_models
from specollama.server.embedded.serve import RunningServer, ServeSettings, serve_models
from specollama.spec_decode.types import Route
from tests.support.hearing import Heard, hear, settings
from tests.support.thinking_models import OPENED, SWITCHED, WRITTEN, written


@pytest.fixture(scope="module")
def thinking(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningServer]:
    """The target in full precision as three models that think, and the ordinary draft."""
    models, folder = default_models(), tmp_path_factory.mktemp("thinking")
    files: dict[str, Path] = {"draft": models["draft"]}
    for name, ending in {"switched": SWITCHED, "opened": OPENED, "tagged": WRITTEN}.items():
        files[name] = written(folder / f"{name}.gguf", ending, source=models["target"])
    with serve_models(files, ServeSettings(num_ctx=512, parallel=5)) as server:
        yield server


QUESTION = "Name a color."  # at no token of whose answers, thinking or not, the target is in two minds

THOUGHTS = [
    (role, content)
    for colour in ("red", "blue", "green", "white")
    for role, content in (
        ("user", QUESTION),
        ("assistant", f"<think>\nI like {colour}.\n</think>\n\nThe colour is {colour}."),
    )
]
"""After so many of them the model thinks, too."""


async def told(server: RunningServer, target: str, route: Route, think: bool | None, *, limit: int = 40) -> Heard:
    chosen = settings(server.url, route=route)
    messages = [Message(role=role, content=content) for role, content in [*THOUGHTS, ("user", QUESTION)]]
    asked = ChatInput(messages, {"temperature": 0, "num_predict": limit}, think=think)
    return await hear(replace(chosen, target=replace(chosen.target, model=target)), asked)


@pytest.mark.parametrize(
    ("target", "think"),
    [
        ("switched", None),
        ("switched", True),
        ("switched", False),
        ("opened", None),
        ("tagged", None),
        ("tagged", False),
    ],
)
async def test_C35_thinking_and_answer_are_those_of_plain(
    thinking: RunningServer, target: str, think: bool | None
) -> None:
    """But for white space at the edges of the thinking, of which engines keep more or less."""
    plain = await told(thinking, target, Route.PLAIN, think)
    assert bool(plain.thinking) != (target == "switched" and think is False)
    assert plain.text
    for route in (Route.LANES, Route.GREEDY):
        heard = await told(thinking, target, route, think)
        assert heard.error is None
        assert heard.statuses[0].startswith(f"speculation: on ({route}")
        assert heard.thinking.strip() == plain.thinking.strip()
        heard.faithful(plain.text)
        assert "think>" not in heard.text + heard.thinking


@pytest.mark.parametrize("limit", [1, 5, 6, 7, 8, 9])
async def test_C35_thinking_that_is_cut_short_is_thinking_still(thinking: RunningServer, limit: int) -> None:
    plain = await told(thinking, "opened", Route.PLAIN, None, limit=limit)
    heard = await told(thinking, "opened", Route.LANES, None, limit=limit)
    assert heard.reason is plain.reason
    begun = heard.thinking.rpartition("<")[2]  # an engine may leave out the beginning of the closing tag
    thought = heard.thinking.removesuffix(f"<{begun}") if "/think>".startswith(begun) else heard.thinking
    assert thought.strip() == plain.thinking.strip()
    heard.faithful(plain.text)
