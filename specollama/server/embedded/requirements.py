"""The packages that the embedded server needs, checked before any of them is imported."""

from __future__ import annotations

from importlib.util import find_spec

from specollama.errors import MissingPackage

NEEDED = ("gguf", "starlette", "uvicorn", "xllamacpp")


def require_packages(*packages: str) -> None:
    """Raise `MissingPackage` naming those that aren't installed; without arguments, of all those needed."""
    missing = [name for name in packages or NEEDED if find_spec(name) is None]
    if missing:
        raise MissingPackage(f"the embedded server needs {', '.join(missing)}: run pip install 'specollama[embedded]'")
