"""A served model's tokenizer: from the cache, or from what its server tells."""

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
    """Those of a pair; None where no model drafts."""
    if draft is None:
        return await load_tokenizer(target), None
    return await asyncio.gather(load_tokenizer(target), load_tokenizer(draft))


async def load_tokenizer(model: ModelInfo) -> TokenizerOrError:
    """The model's tokenizer, from the cache or from its server, or why it isn't to be had."""
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
