"""The tokenizer of a model on a server: from the cache, or built from the server's /api/show."""

from __future__ import annotations

import asyncio

from specollama.backends.llama_cpp import tokenizer
from specollama.backends.llama_cpp.tokenizer import LlamaTokenizer
from specollama.backends.ollama.model_info import ModelInfo
from specollama.errors import RunError

TokenizerOrError = LlamaTokenizer | RunError | OSError


async def load_tokenizers(
    target: ModelInfo, draft: ModelInfo | None
) -> tuple[TokenizerOrError, TokenizerOrError | None]:
    """The tokenizers of target and draft model, or the errors; None for the draft if no model drafts."""
    if draft is None:
        return await load_tokenizer(target), None
    return await asyncio.gather(load_tokenizer(target), load_tokenizer(draft))


async def load_tokenizer(model: ModelInfo) -> TokenizerOrError:
    """The model's tokenizer, from the cache or from its server; or the error that prevented it."""
    if not model.digest:
        return RunError(f"{model.server.url} doesn't list {model.name}")
    path = tokenizer.cache_path(model.server.url, model.digest)
    try:
        if not path.exists():
            show = await model.server.show(model.name, verbose=True)
            await asyncio.to_thread(tokenizer.write_vocabulary_file, show.model_info, path)
        return await asyncio.to_thread(LlamaTokenizer, path)
    except (RunError, OSError) as error:
        return error
