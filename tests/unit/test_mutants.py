"""The table of mutants (scripts/mutants.toml) fits the tree: each wrong line can be put in, and its tests are there."""

from __future__ import annotations

import ast
import runpy
from functools import cache
from pathlib import Path
from typing import Any

import pytest

ROOT = next(folder for folder in Path(__file__).parents if (folder / "scripts/mutants").exists())
SCRIPT = runpy.run_path(str(ROOT / "scripts/mutants"))
MUTANTS = SCRIPT["load"]()


@cache
def functions(file: Path) -> frozenset[str]:
    """The names of a file's tests."""
    tree = ast.parse(file.read_text(encoding="utf-8"))
    return frozenset(node.name for node in ast.walk(tree) if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef))


def test_there_are_enough_of_them() -> None:
    assert len(MUTANTS) >= 120


def wrong_line(mutant: Any) -> str:
    """Why a mutant can't be put in; "" where it can."""
    sound = (ROOT / mutant.file).read_text(encoding="utf-8")
    try:
        changed = mutant.applied(sound)
        ast.parse(changed)
    except (SCRIPT["Unfit"], SyntaxError) as error:
        return f"{mutant.id}: {error}"
    return "" if changed != sound else f"{mutant.id} changes nothing"


@pytest.mark.parametrize("file", sorted({mutant.file for mutant in MUTANTS}))
def test_each_mutant_of_a_file_changes_one_place_and_leaves_code_that_can_be_read(file: str) -> None:
    wrong = [wrong_line(mutant) for mutant in MUTANTS if mutant.file == file]
    assert wrong
    assert not any(wrong), "\n".join(filter(None, wrong))


def test_the_tests_of_a_mutant_are_there() -> None:
    assert all(mutant.tests for mutant in MUTANTS)
    for test in sorted({test for mutant in MUTANTS for test in mutant.tests}):
        file, _, name = test.partition("::")
        assert (ROOT / file).is_file(), file
        assert not name or name.partition("[")[0] in functions(ROOT / file), test


@pytest.mark.parametrize("old", ["nowhere in the file", "import"])
def test_a_text_that_does_not_stand_there_exactly_once_is_refused(old: str) -> None:
    mutant = SCRIPT["Mutant"]("id", "file.py", old, "", ("test",))
    with pytest.raises(SCRIPT["Unfit"], match="not once"):
        mutant.applied("import this\nimport that\n")
