"""A served model's tokenizer: from the cache, or from what its server tells."""

from __future__ import annotations

import asyncio

from specollama.backends.llama_cpp import tokenizer
from specollama.backends.llama_cpp.tokenizer import LlamaVocabulary
from specollama.backends.ollama.model_info import Model
from specollama.errors import RunError

Found = LlamaVocabulary | RunError | OSError


async def vocabularies(target: Model, draft: Model | None) -> tuple[Found, Found | None]:
    """Those of a pair; None where no model drafts."""
    if draft is None:
        return await vocabulary_of(target), None
    return await asyncio.gather(vocabulary_of(target), vocabulary_of(draft))


async def vocabulary_of(model: Model) -> Found:
    """The model's tokenizer, from the cache or from its server, or why it isn't to be had."""
    if not model.digest:
        return RunError(f"{model.server.url} doesn't list {model.name}")
    path = tokenizer.cached(model.server.url, model.digest)
    try:
        if not path.exists():
            show = await model.server.show(model.name, verbose=True)
            await asyncio.to_thread(tokenizer.write, show.model_info, path)
        return await asyncio.to_thread(LlamaVocabulary, path)
    except (RunError, OSError) as error:
        return error
