"""What Tab offers, as bash, zsh and fish ask for it."""

from __future__ import annotations

from pathlib import Path

import pytest

from specollama.cli.command_table import COMMANDS
from specollama.cli.terminal import completion
from specollama.spec_decode.types import Route
from tests.support.calls import Call, own_config

PAIRS = '[pairs.coder]\ntarget = "big"\ndraft = "lookup"\n[pairs.prose]\ntarget = "big"\ndraft = "lookup"\n'


@pytest.fixture(params=["bash", "zsh", "fish"])
def offered(request: pytest.FixtureRequest, call: Call, monkeypatch: pytest.MonkeyPatch):  # type: ignore[no-untyped-def]
    """Asks for what may follow a line, as a shell does; the lines of the answer."""

    def ask(line: str) -> str:
        monkeypatch.setenv("_SPECOLLAMA_COMPLETE", f"complete_{request.param}")
        monkeypatch.setenv("COMP_WORDS", line)
        monkeypatch.setenv("COMP_CWORD", str(len(line.split(" ")) - 1))
        monkeypatch.setenv("_TYPER_COMPLETE_ARGS", line)
        monkeypatch.setenv("_TYPER_COMPLETE_FISH_ACTION", "get-args")
        return call().out

    return ask


def test_commands_are_completed(offered) -> None:  # type: ignore[no-untyped-def]
    shown = offered("specollama d")
    assert all(name in shown for name in COMMANDS if name.startswith("d"))
    assert "serve" not in shown.split()


def test_pairs_are_completed(offered) -> None:  # type: ignore[no-untyped-def]
    own_config(PAIRS)
    for command in ("run", "chat", "doctor", "bench", "tune", "pairs show"):
        shown = offered(f"specollama {command} co")
        assert "coder" in shown, command
        assert "prose" not in shown, command


def test_routes_are_completed(offered) -> None:  # type: ignore[no-untyped-def]
    shown = offered("specollama run --route l")
    assert all((str(route) in shown) is route.startswith("l") for route in Route)


def test_the_pairs_of_a_file_that_is_not_trusted_are_not_offered() -> None:
    Path("specollama.toml").write_text(PAIRS)
    assert completion.pairs("") == ["embedded"]


def test_a_server_that_is_down_offers_no_models(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OLLAMA_HOST", "http://127.0.0.1:9")
    assert completion.models("") == []
    assert completion.drafts("l") == ["lookup"]


def test_the_help_groups_the_commands_by_use_set_up_measure_review(call: Call) -> None:
    shown = call("--help").out
    places = [shown.index(f"─ {panel} ─") for panel in ("Use", "Set up", "Measure", "Review")]
    assert places == sorted(places)
