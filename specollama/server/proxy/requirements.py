"""The packages that the proxy needs, checked before any of them is imported."""

from __future__ import annotations

from importlib.util import find_spec

from specollama.errors import MissingPackage

NEEDED = ("prometheus_client", "starlette", "uvicorn")


def require_packages() -> None:
    """Raise `MissingPackage` naming those that aren't installed."""
    missing = [name for name in NEEDED if find_spec(name) is None]
    if missing:
        raise MissingPackage(f"`serve` needs {', '.join(missing)}: run pip install 'specollama[proxy]'")
