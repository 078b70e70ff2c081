"""What starting the program imports: a command's module only when it is called, heavy packages only where needed."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
import typer.main

from specollama.cli import app
from specollama.cli.command_table import COMMANDS
from tests.support.scripted_ollama import ScriptedModel, ScriptedOllama, pieces
from tests.support.serving import serving

ROOT = Path(__file__).parents[3]
HEAVY = {"numpy", "llama_cpp", "starlette", "uvicorn", "matplotlib", "jinja2", "gguf", "xllamacpp"}
MOST_MODULES = 314  # half of what the import took before commands were imported when called


def modules_after(*arguments: str) -> set[str]:
    """The modules that are loaded after `specollama ARGUMENTS`, or after the import alone where there are none."""
    program = (
        "import sys, specollama.cli\n"
        "try:\n    len(sys.argv) > 1 and specollama.cli.main()\n"
        "except SystemExit as end:\n    assert not end.code, end.code\n"
        "print(*sys.modules, file=sys.stderr)"
    )
    done = subprocess.run(
        [sys.executable, "-c", program, *arguments],
        env=os.environ | {"PYTHONPATH": str(ROOT)},
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return set(done.stderr.splitlines()[-1].split())


@pytest.mark.parametrize("arguments", [[], ["--help"]], ids=["import", "help"])
def test_the_import_and_the_help_load_few_modules_and_no_heavy_package(arguments: list[str]) -> None:
    loaded = modules_after(*arguments)
    assert loaded & HEAVY == set()
    assert len(loaded) <= MOST_MODULES
    assert not [name for name in loaded if name.startswith("specollama.cli.commands.")]


def test_a_run_on_the_route_plain_loads_neither_numpy_nor_llama_cpp(tmp_path: Path) -> None:
    words = pieces("Fog over the sea.")
    server = ScriptedOllama({"target": ScriptedModel(words), "draft": ScriptedModel(words)})
    with serving(server) as url:
        pair = ["--target", f"target@{url}", "--draft", f"draft@{url}"]
        loaded = modules_after("run", "--route", "plain", *pair, "Write a line.")
    assert "specollama.cli.commands.run" in loaded
    assert loaded & {"numpy", "llama_cpp"} == set()


@pytest.mark.parametrize("name", COMMANDS)
def test_the_table_repeats_the_first_paragraph_of_each_commands_help(name: str) -> None:
    command = typer.main.get_command(app).load(name)  # type: ignore[attr-defined]
    assert command.name == name
    assert " ".join(command.help.split("\n\n")[0].split()) == COMMANDS[name].help


def test_each_module_of_the_commands_with_a_command_of_its_name_is_in_the_table() -> None:
    found = {file.stem for file in (ROOT / "specollama" / "cli" / "commands").glob("*.py")}
    assert {entry.module for entry in COMMANDS.values()} <= found
    assert found - {entry.module for entry in COMMANDS.values()} == {
        *("__init__", "quality", "suggest", "review_screen", "review_session")
    }
