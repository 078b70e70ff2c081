"""The shape of the package: imports go down only, modules stay small, and what is public says what it is."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

import specollama

ROOT = Path(specollama.__file__).parent
MOST_LINES = 400
DOCUMENTED = 3  # the highest floor on which what is public has a docstring
SELF_EVIDENT = 12  # lines that may go without one
FIELD_BY_FIELD = {"wire"}  # says what each field of JSON is beside it

FLOORS: dict[str, int] = {
    "specollama": 0,
    "types": 0,
    "errors": 0,
    "acceptance": 1,
    "sampling": 1,
    "alignment": 1,
    "background": 1,
    "lanes": 1,
    "lookahead": 1,
    "planner": 1,
    "calibration": 1,
    "reply_length": 1,
    "speedup": 1,
    "stopping": 1,
    "stats": 1,
    "thinking": 1,
    "config": 1,
    "hosts": 1,
    "privately": 1,
    "tables": 1,
    "toml": 1,
    "trust": 1,
    "wire": 1,
    "backends.base": 1,
    "engine.*": 2,
    "backends.*": 2,
    "replies": 2,
    "quality": 2,
    "report": 2,
    "checks": 3,
    "opened": 3,
    "drafting": 3,
    "scoring.*": 3,
    "local_route": 3,
    "native_route": 3,
    "prompts": 3,
    "events": 3,
    "plan": 3,
    "pairs": 3,
    "serving.*": 4,
    "bodies": 4,
    "pool": 4,
    "answering": 4,
    "client": 4,
    "bench.*": 4,
    "review.*": 4,
    "doctor.*": 4,
    "native": 4,
    "survey": 4,
    "trace.*": 4,
    "export.*": 4,
    "embedded.*": 5,
    "proxy.*": 5,
    "chat.*": 6,
    "cli.*": 6,
    "__main__": 6,
}
"""Floors by module, without the package's name; `x.*` stands for x and all in it that isn't named."""


def modules() -> dict[str, Path]:
    return {_name(path): path for path in sorted(ROOT.rglob("*.py"))}


def _name(path: Path) -> str:
    parts = path.relative_to(ROOT).with_suffix("").parts
    return ".".join(part for part in parts if part != "__init__") or "specollama"


def floor(module: str) -> int | None:
    """The floor of a module; None where the table doesn't give it one."""
    if module in FLOORS:
        return FLOORS[module]
    parts = module.split(".")
    wholes = (".".join(parts[:length]) + ".*" for length in range(len(parts), 0, -1))
    return next((FLOORS[whole] for whole in wholes if whole in FLOORS), None)


def imported(source: str, module: str, known: set[str]) -> set[str]:
    """The package's own modules that a module imports, wherever in it."""
    found = set[str]()
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{module} imports relatively: this test reads absolute imports only"
            found |= {f"{node.module}.{alias.name}" for alias in node.names}
    return {name for name in (_known(name, known) for name in found) if name and name != module}


def _known(name: str, known: set[str]) -> str | None:
    """The module that a dotted name of an import lies in."""
    if name.partition(".")[0] != "specollama":
        return None
    parts = name.split(".")[1:]
    while parts and ".".join(parts) not in known:
        parts.pop()
    return ".".join(parts) or "specollama"


def graph() -> dict[str, set[str]]:
    found = modules()
    return {module: imported(path.read_text(), module, set(found)) for module, path in found.items()}


def public(tree: ast.Module) -> Iterator[ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef]:
    for node in tree.body:
        if isinstance(node, ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef) and not node.name.startswith("_"):
            yield node


def length(node: ast.stmt) -> int:
    return (node.end_lineno or node.lineno) - node.lineno + 1


def test_every_module_has_a_floor() -> None:
    homeless = [module for module in modules() if floor(module) is None]
    assert not homeless, f"give these a floor in FLOORS of {Path(__file__).name}: {', '.join(homeless)}"


def test_imports_go_down_only() -> None:
    wrong = [
        f"{module} (floor {floor(module)}) imports {other} (floor {floor(other)})"
        for module, others in graph().items()
        for other in sorted(others)
        if (floor(other) or 0) > (floor(module) or 0)
    ]
    assert not wrong, "\n".join(wrong)


def test_no_module_imports_itself_by_way_of_others() -> None:
    edges = graph()
    done = set[str]()

    def visit(module: str, path: tuple[str, ...]) -> None:
        assert module not in path, " -> ".join((*path[path.index(module) :], module))
        if module not in done:
            for other in sorted(edges[module]):
                visit(other, (*path, module))
            done.add(module)

    for module in edges:
        visit(module, ())


@pytest.mark.parametrize("module", modules())
def test_a_module_stays_small_enough_to_read(module: str) -> None:
    lines = len(modules()[module].read_text().splitlines())
    assert lines <= MOST_LINES, f"{module} has {lines} lines: split it by what it does"


def test_there_is_no_dumping_ground() -> None:
    dumps = {"utils", "util", "helpers", "misc", "common"}
    assert not [module for module in modules() if dumps & set(module.split("."))]


@pytest.mark.parametrize("module", [m for m in modules() if (floor(m) or 0) <= DOCUMENTED and m not in FIELD_BY_FIELD])
def test_what_is_public_on_the_lower_floors_says_what_it_is(module: str) -> None:
    tree = ast.parse(modules()[module].read_text())
    silent = [node.name for node in public(tree) if ast.get_docstring(node) is None and length(node) > SELF_EVIDENT]
    assert not silent, f"{module} has no docstring for {', '.join(silent)}"
    assert not tree.body or ast.get_docstring(tree), f"{module} has no docstring itself"


# that these checks can fail


def test_an_import_is_traced_to_its_module_however_it_is_written() -> None:
    known = {"specollama", "types", "backends", "backends.base", "wire"}
    source = """
import specollama.backends.ollama.schema
import json
from specollama.spec_decode import types
from specollama.spec_decode import interfaces
def later():
    from specollama.spec_decode.interfaces import Target
    from specollama import __version__
"""
    assert imported(source, "x", known) == {"wire", "types", "backends.base", "specollama"}


def test_floors_are_found_by_name_before_folder() -> None:
    assert (floor("backends.base"), floor("backends.ollama"), floor("backends")) == (1, 2, 2)
    assert floor("cli.run") == 6
    assert floor("something_new") is None
