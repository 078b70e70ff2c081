"""Lossless speculative decoding for Ollama, on the client's side."""

from importlib import import_module
from typing import Any

from specollama._version import __version__

__all__ = ["AsyncClient", "ChatResponse", "Client", "GenerateResponse", "__version__"]


def __getattr__(name: str) -> Any:
    """The clients are imported when they are first wanted: the command line has no use for them."""
    if name in __all__:
        return getattr(import_module("specollama.client"), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
