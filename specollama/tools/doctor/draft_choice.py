"""The draft for a target that is given without one."""

from __future__ import annotations

from collections.abc import Mapping

from specollama.backends.ollama.model_name import full_name
from specollama.config.settings import DraftRef, ModelRef, PromptLookup, ollama_endpoint
from specollama.errors import RunError
from specollama.tools.doctor.installed_models import installed_pairs


async def best_draft(target: DraftRef, environ: Mapping[str, str]) -> DraftRef:
    """The installed model on the target's own Ollama that promises most; prompt lookup where none has its tokenizer.

    A file and another engine's model get prompt lookup, too. Raises RunError where the server can't be asked.
    """
    endpoint = ollama_endpoint(target)
    if endpoint is None:
        return PromptLookup.LOOKUP
    _, pairs, faults = await installed_pairs([endpoint], environ)
    if faults:
        raise RunError(faults[0])
    name = full_name(target.model) if isinstance(target, ModelRef) else ""
    fitting = (pair.draft for pair in pairs if full_name(pair.target.name) == name)
    best = next(fitting, None)
    return ModelRef(best.name, endpoint) if best else PromptLookup.LOOKUP
