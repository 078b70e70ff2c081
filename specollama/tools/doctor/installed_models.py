"""The models of the servers, and the pairs that they make."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from contextlib import AsyncExitStack

from specollama.backends.llama_cpp.tokenizer import LlamaTokenizer
from specollama.backends.ollama.client import OllamaServer
from specollama.backends.ollama.model_info import ModelInfo, fetch_model_info
from specollama.backends.ollama.schema import ListedModel
from specollama.backends.ollama.tokenizer import load_tokenizer
from specollama.config.endpoints import Endpoint
from specollama.errors import EndpointError
from specollama.pairs.feasibility import model_obstacle
from specollama.pairs.tokenizers import compare_tokenizers
from specollama.tools.doctor.pair_status import tokenizers_text
from specollama.tools.doctor.suggestions import InstalledModel, Suggestion, billions, candidates, make_suggestion

_TELLING = ("model", "pre", "bos_token_id", "eos_token_id", "add_bos_token")


async def installed_pairs(
    endpoints: Sequence[Endpoint], environ: Mapping[str, str]
) -> tuple[list[InstalledModel], list[Suggestion], list[str]]:
    """The installed models, the pairs among them with compared tokenizers, and a line for each server that is down."""
    async with AsyncExitStack() as stack:
        known, faults = dict[InstalledModel, ModelInfo](), list[str]()
        for endpoint in endpoints:
            server = await stack.enter_async_context(
                OllamaServer(endpoint.url, **endpoint.connection_settings(environ))
            )
            try:
                known.update(await _models(server, endpoint))
            except EndpointError as error:
                faults.append(str(error))
        pairs = candidates(list(known))
        vocabularies = {
            model: await load_tokenizer(known[model]) for pair in pairs for model in (pair.target, pair.draft)
        }
        try:
            pairs = [_compared(pair, vocabularies) for pair in pairs]
        finally:
            for vocabulary in vocabularies.values():
                if isinstance(vocabulary, LlamaTokenizer):
                    vocabulary.close()
    return list(known), sorted(pairs, key=lambda pair: -pair.speedup), faults


async def _models(server: OllamaServer, endpoint: Endpoint) -> dict[InstalledModel, ModelInfo]:
    listed = await server.tags()
    described = await asyncio.gather(*(fetch_model_info(server, each.name) for each in listed), return_exceptions=True)
    found = zip(listed, described, strict=True)
    return {_installed(each, model, endpoint): model for each, model in found if isinstance(model, ModelInfo)}


def _installed(listed: ListedModel, model: ModelInfo, endpoint: Endpoint) -> InstalledModel:
    info = model.show.model_info
    capable = not model.show.capabilities or "completion" in model.show.capabilities
    return InstalledModel(
        listed.name.removesuffix(":latest"),
        endpoint.name or "",
        endpoint.url,
        listed.size,
        billions(model.show.details.parameter_size),
        tuple(info.get(f"tokenizer.ggml.{key}") for key in _TELLING),
        capable and model_obstacle(model, model.parameters) is None,
    )


def _compared(pair: Suggestion, vocabularies: Mapping[InstalledModel, LlamaTokenizer | Exception]) -> Suggestion:
    """The pair with its vocabularies compared, token by token, where they are to be had."""
    tokenizers = compare_tokenizers(vocabularies[pair.target], vocabularies[pair.draft])
    return make_suggestion(
        pair.target, pair.draft, same=not tokenizers.difference, tokenizers=tokenizers_text(tokenizers)
    )
