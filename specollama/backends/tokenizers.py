"""A served model's tokenizer: from the cache, or from what its server tells."""

from __future__ import annotations

import asyncio

from specollama.backends import vocabulary
from specollama.backends.facts import Model
from specollama.backends.vocabulary import LlamaVocabulary
from specollama.errors import RunError


async def vocabulary_of(model: Model) -> LlamaVocabulary | RunError | OSError:
    """The model's tokenizer, from the cache or from its server, or why it isn't to be had."""
    if not model.digest:
        return RunError(f"{model.server.url} doesn't list {model.name}")
    path = vocabulary.cached(model.server.url, model.digest)
    try:
        if not path.exists():
            show = await model.server.show(model.name, verbose=True)
            await asyncio.to_thread(vocabulary.write, show.model_info, path)
        return await asyncio.to_thread(LlamaVocabulary, path)
    except (RunError, OSError) as error:
        return error
