"""Chats at a terminal, with a server that writes what is written down, or with the embedded engine."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.support.screen import Screen
from tests.support.scripted_ollama import ScriptedModel, ScriptedOllama, pieces
from tests.support.serving import serving

LETTER = """Here is a **short** function.

```python
def add(a, b):
    return a + b
```

1. Read *both* numbers.
2. Add them."""


@pytest.fixture
def letter() -> ScriptedOllama:
    """A pair that writes a letter in markdown, and thinks before it where it isn't speculated."""
    words = pieces(LETTER)
    return ScriptedOllama({"target": ScriptedModel(words, thinking="Hm."), "draft": ScriptedModel(words, slips=6)})


@pytest.fixture
def letter_url(letter: ScriptedOllama) -> Iterator[str]:
    with serving(letter) as url:
        yield url


@pytest.fixture
def places(tmp_path: Path) -> dict[str, str]:
    """The user's directories, all of them new."""
    names = ("XDG_DATA_HOME", "XDG_STATE_HOME", "XDG_CONFIG_HOME", "XDG_CACHE_HOME")
    return {name: str(tmp_path / name.lower()) for name in names}


@pytest.fixture
def chat(places: dict[str, str], tmp_path: Path) -> Iterator[Callable[..., Screen]]:
    """Starts `specollama chat` on a terminal of its own."""
    running: list[Screen] = []

    def start(*arguments: str, **environ: str) -> Screen:
        cache = {} if environ.pop("cache", "") == "shared" else {"XDG_CACHE_HOME": places["XDG_CACHE_HOME"]}
        own: dict[str, Any] = {**{name: at for name, at in places.items() if name != "XDG_CACHE_HOME"}, **cache}
        screen = Screen(["chat", *arguments], tmp_path, {**own, **environ})
        running.append(screen)
        return screen

    yield start
    for screen in running:
        screen.close()
