"""The examples that ask a server: each answers, against a server that writes what is written down."""

from __future__ import annotations

import json
import os
import runpy
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from specollama.server.proxy.serve import serve_in_thread
from tests.support.configured import written
from tests.support.scripted_ollama import SONG, song
from tests.support.serving import serving

EXAMPLES = Path(__file__).parents[3] / "examples"
TEXT = "".join(piece.text for piece in SONG)


@pytest.fixture
def url() -> Iterator[str]:
    with serving(song()) as url:
        yield url


@pytest.fixture
def config(url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The pair `duo`; its file is the one that the program finds."""
    file = written(tmp_path, url, pair="options = { temperature = 0 }")
    monkeypatch.setenv("SPECOLLAMA_CONFIG", str(file))
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    return file


def main_of(name: str) -> Callable[..., Any]:
    main: Callable[..., Any] = runpy.run_path(str(EXAMPLES / f"{name}.py"))["main"]
    return main


def test_every_example_is_run_by_a_test() -> None:
    tests = Path(__file__).read_text("utf-8") + (Path(__file__).parents[2] / "unit/test_examples.py").read_text("utf-8")
    assert [file.stem for file in sorted(EXAMPLES.glob("*.py")) if file.stem not in tests] == []


def test_chat_client(config: Path, capsys: pytest.CaptureFixture[str]) -> None:
    main_of("chat_client")("duo", "Sing.")
    text, counters = capsys.readouterr().out.splitlines()
    assert text == TEXT
    assert counters.startswith("route lanes, acceptance rate 0.")


def test_openai_client(config: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with serve_in_thread(config, dict(os.environ)) as (proxy, _):
        main_of("openai_client")(proxy, "duo", "Sing.")
    assert capsys.readouterr().out == f"{TEXT}\nroute lanes\n"


def test_batch(config: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    prompts = tmp_path / "prompts.txt"
    prompts.write_text("Sing.\nSing again.\n", encoding="utf-8")
    main_of("batch")("duo", str(prompts))
    lines = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert [line["prompt"] for line in lines] == ["Sing.", "Sing again."]
    assert {line["answer"] for line in lines} == {TEXT}


def test_own_route(
    url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    main_of("own_route")(url, "target", "Sing.")
    assert capsys.readouterr().out == f"[speculation: on (my route, lookahead 4)]\n{TEXT}\n"
