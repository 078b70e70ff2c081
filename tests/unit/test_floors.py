"""The shape of the package: imports go down only, modules stay small, and what is public says what it is."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import specollama

ROOT = Path(specollama.__file__).parent
MOST_LINES = 400
DOCUMENTED = {
    "errors",
    "spec_decode",
    "config",
    "backends",
    "pairs",
}  # what is public there has a docstring
SELF_EVIDENT = 12  # lines that may go without one
FIELD_BY_FIELD = {"backends.ollama.schema"}  # says what each field of JSON is beside it
MOST_ENTRIES = 9  # in the package, beside what every package has
ALWAYS = {"__init__", "__main__", "_version", "py", "__pycache__"}  # py.typed

FLOORS: dict[str, int] = {
    "_version": 0,
    "errors": 0,
    "spec_decode": 1,
    "config": 2,
    "backends": 3,
    "pairs": 4,
    "client": 5,
    "server": 5,
    "tools": 5,
    "cli": 6,
    "__main__": 7,
    "specollama": 7,
}
"""The floor of each entry of the package. An entry imports from lower floors only: none above it, none beside it."""


def modules() -> dict[str, Path]:
    return {_name(path): path for path in sorted(ROOT.rglob("*.py"))}


def _name(path: Path) -> str:
    parts = path.relative_to(ROOT).with_suffix("").parts
    return ".".join(part for part in parts if part != "__init__") or "specollama"


def entry(module: str) -> str:
    """What a module lies in, as the first look at the package shows it."""
    return module.partition(".")[0]


def floor(module: str) -> int | None:
    """The floor of a module's entry; None where the table doesn't give it one."""
    return FLOORS.get(entry(module))


def allowed(module: str, other: str) -> bool:
    """Whether a module may import the other."""
    return entry(module) == entry(other) or FLOORS[entry(other)] < FLOORS[entry(module)]


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


@cache
def graph() -> dict[str, set[str]]:
    found = modules()
    return {module: imported(path.read_text(), module, set(found)) for module, path in found.items()}


def public(
    tree: ast.Module,
) -> Iterator[ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef]:
    for node in tree.body:
        if isinstance(node, ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef) and not node.name.startswith("_"):
            yield node


def length(node: ast.stmt) -> int:
    return (node.end_lineno or node.lineno) - node.lineno + 1


def test_every_module_has_a_floor() -> None:
    homeless = [module for module in modules() if floor(module) is None]
    assert not homeless, f"give these a floor in FLOORS of {Path(__file__).name}: {', '.join(homeless)}"


def test_the_package_has_few_entries() -> None:
    entries = {path.name.partition(".")[0] for path in ROOT.iterdir()} - ALWAYS
    assert len(entries) <= MOST_ENTRIES, f"more than {MOST_ENTRIES}: {', '.join(sorted(entries))}"


def test_imports_go_down_only() -> None:
    wrong = [
        f"{module} (floor {floor(module)}) imports {other} (floor {floor(other)})"
        for module, others in graph().items()
        for other in sorted(others)
        if not allowed(module, other)
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


def test_modules_stay_small_enough_to_read() -> None:
    lines = {module: len(path.read_text().splitlines()) for module, path in modules().items()}
    long = [f"{module} has {count} lines" for module, count in lines.items() if count > MOST_LINES]
    assert not long, f"split these by what they do: {', '.join(long)}"


def test_there_is_no_dumping_ground() -> None:
    dumps = {"utils", "util", "helpers", "misc", "common"}
    assert not [module for module in modules() if dumps & set(module.split("."))]


def undocumented(module: str, path: Path) -> list[str]:
    """What is public in a module, the module itself included, and has no docstring."""
    tree = ast.parse(path.read_text())
    silent = [node.name for node in public(tree) if ast.get_docstring(node) is None and length(node) > SELF_EVIDENT]
    itself = [] if not tree.body or ast.get_docstring(tree) else ["the module itself"]
    return [f"{module}: {name}" for name in (*itself, *silent)]


def test_what_is_public_on_the_lower_floors_says_what_it_is() -> None:
    checked = {m: path for m, path in modules().items() if entry(m) in DOCUMENTED and m not in FIELD_BY_FIELD}
    silent = [name for module, path in checked.items() for name in undocumented(module, path)]
    assert not silent, f"no docstring: {', '.join(silent)}"


# that these checks can fail


def test_an_import_is_traced_to_its_module_however_it_is_written() -> None:
    known = {
        "specollama",
        "spec_decode",
        "spec_decode.types",
        "backends",
        "backends.http",
        "errors",
    }
    source = """
import specollama.errors
import json
from specollama.spec_decode import types
from specollama.backends import http
def later():
    from specollama.backends.http import outside
    from specollama import __version__
"""
    assert imported(source, "x", known) == {
        "errors",
        "spec_decode.types",
        "backends.http",
        "specollama",
    }


def test_an_entry_knows_those_below_it_and_none_beside_it() -> None:
    assert allowed("cli.commands.run", "pairs.pair")
    assert allowed("server.proxy.app", "server.http.guard")
    assert not allowed("server.proxy.app", "tools.doctor")
    assert not allowed("config.settings", "backends")
    assert floor("something_new") is None


def test_a_public_function_without_a_docstring_is_found(tmp_path: Path) -> None:
    file = tmp_path / "module.py"
    file.write_text("def long():\n" + "    pass\n" * SELF_EVIDENT + "def _own():\n" + "    pass\n" * SELF_EVIDENT)
    assert undocumented("x", file) == ["x: the module itself", "x: long"]
