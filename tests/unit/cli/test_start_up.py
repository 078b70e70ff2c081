"""What a start loads: the command line answers at once, and a heavy library comes only with what needs it."""

from __future__ import annotations

import subprocess
import sys

import pytest

from specollama.cli.command_table import COMMANDS, load

HEAVY = {"numpy", "llama_cpp", "starlette", "uvicorn", "matplotlib", "jinja2", "gguf", "xllamacpp"}
MOST_MODULES = 315  # half of what a start loaded in version 0.1.0, and one: signals are handled from the start


def loaded(code: str) -> set[str]:
    """The modules that a fresh interpreter has after this code; what the code prints goes to stderr."""
    program = "\n".join(
        (
            "import sys",
            "out, sys.stdout = sys.stdout, sys.stderr",
            "try:",
            f"    {code}",
            "finally:",
            "    print(*sys.modules, file=out)",
        )
    )
    return set(subprocess.run([sys.executable, "-c", program], capture_output=True, text=True).stdout.split())


@pytest.mark.parametrize(
    "code",
    ["import specollama.cli", "from specollama.cli import main; sys.argv = ['specollama', '--help']; main()"],
    ids=["import", "help"],
)
def test_the_command_line_starts_without_heavy_libraries_and_with_half_as_many_modules_as_it_did(code: str) -> None:
    modules = loaded(code)
    assert "specollama.cli" in modules
    assert modules & HEAVY == set()
    assert len(modules) <= MOST_MODULES


def test_asking_for_the_help_of_run_loads_neither_numpy_nor_llama_cpp() -> None:
    modules = loaded("from specollama.cli import main; sys.argv = ['specollama', 'run', '--help']; main()")
    assert "specollama.cli.commands.run" in modules
    assert modules & HEAVY == set()


@pytest.mark.parametrize("name", COMMANDS)
def test_the_help_of_the_table_is_the_first_paragraph_of_the_commands_own(name: str) -> None:
    own = load(name).help.split("\n\n")[0]
    assert " ".join(own.split()) == COMMANDS[name].help
