"""The help, as a terminal of 80 columns shows it."""

from __future__ import annotations

import pytest
import typer.main

from specollama import __version__
from specollama.cli import app
from tests.support.calls import Call

COMMANDS = sorted(typer.main.get_command(app).commands)  # type: ignore[attr-defined]


@pytest.fixture(autouse=True)
def columns(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    monkeypatch.setenv("TERMINAL_WIDTH", "80")


def test_the_version_is_printed(call: Call) -> None:
    shown = call("--version")

    assert (shown.code, shown.out) == (0, f"specollama {__version__}\n")


def test_the_help_lists_every_command(call: Call) -> None:
    shown = call("--help")

    assert shown.code == 0
    assert "Usage: specollama [OPTIONS] COMMAND [ARGS]..." in shown.out
    for command in COMMANDS:
        assert f"│ {command} " in shown.out


@pytest.mark.parametrize(
    "command",
    [
        [],
        *([name] for name in COMMANDS),
        ["embedded", "serve"],
        *(["chats", name] for name in ("list", "export", "delete")),
        *(["pairs", name] for name in ("show", "suggest", "quality")),
    ],
)
@pytest.mark.parametrize("option", ["-h", "--help"])
def test_help_fits_80_columns_and_cuts_nothing_off(call: Call, command: list[str], option: str) -> None:
    shown = call(*command, option)

    assert shown.code == 0
    assert max(len(line) for line in shown.out.splitlines()) <= 80
    assert "…" not in shown.out


def test_every_option_of_run_has_words_of_its_own(call: Call) -> None:
    command = typer.main.get_command(app).load("run")  # type: ignore[attr-defined]
    text = call("run", "--help").out

    for parameter in command.params:
        assert parameter.help, parameter.name
        assert max(parameter.opts, key=len) in text or parameter.param_type_name == "argument"


def test_what_is_used_where_nothing_is_given_is_told(call: Call) -> None:
    def words(*command: str) -> str:
        return " ".join(call(*command, "--help").out.replace("│", " ").split())

    assert "$SPECOLLAMA_CONFIG, ./specollama.toml, or the user's configuration directory" in words("run")
    assert "$OLLAMA_HOST, else http://127.0.0.1:11434" in words("run")
    assert "half of the processors" in words("embedded", "serve")
