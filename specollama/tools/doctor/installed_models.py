"""The models of the servers, and the pairs that they make."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from contextlib import AsyncExitStack

from specollama.backends.llama_cpp.tokenizer import LlamaVocabulary
from specollama.backends.ollama.client import OllamaServer
from specollama.backends.ollama.model_info import Model, describe
from specollama.backends.ollama.schema import ListedModel
from specollama.backends.ollama.tokenizer import vocabulary_of
from specollama.config.endpoints import Endpoint
from specollama.errors import EndpointError
from specollama.pairs.feasibility import model_obstacle
from specollama.pairs.tokenizers import compared
from specollama.tools.doctor.pair_status import said
from specollama.tools.doctor.suggestions import Installed, Suggestion, billions, candidates, suggested

_TELLING = ("model", "pre", "bos_token_id", "eos_token_id", "add_bos_token")


async def installed_pairs(
    endpoints: Sequence[Endpoint], environ: Mapping[str, str]
) -> tuple[list[Installed], list[Suggestion], list[str]]:
    """What is installed, the pairs among it with their tokenizers compared, and a line for each server that is down."""
    async with AsyncExitStack() as stack:
        known, faults = dict[Installed, Model](), list[str]()
        for endpoint in endpoints:
            server = await stack.enter_async_context(OllamaServer(endpoint.url, **endpoint.reaching(environ)))
            try:
                known.update(await _models(server, endpoint))
            except EndpointError as error:
                faults.append(str(error))
        pairs = candidates(list(known))
        vocabularies = {
            model: await vocabulary_of(known[model]) for pair in pairs for model in (pair.target, pair.draft)
        }
        try:
            pairs = [_compared(pair, vocabularies) for pair in pairs]
        finally:
            for vocabulary in vocabularies.values():
                if isinstance(vocabulary, LlamaVocabulary):
                    vocabulary.close()
    return list(known), sorted(pairs, key=lambda pair: -pair.speedup), faults


async def _models(server: OllamaServer, endpoint: Endpoint) -> dict[Installed, Model]:
    listed = await server.tags()
    described = await asyncio.gather(*(describe(server, each.name) for each in listed), return_exceptions=True)
    found = zip(listed, described, strict=True)
    return {_installed(each, model, endpoint): model for each, model in found if isinstance(model, Model)}


def _installed(listed: ListedModel, model: Model, endpoint: Endpoint) -> Installed:
    info = model.show.model_info
    capable = not model.show.capabilities or "completion" in model.show.capabilities
    return Installed(
        listed.name.removesuffix(":latest"),
        endpoint.name or "",
        endpoint.url,
        listed.size,
        billions(model.show.details.parameter_size),
        tuple(info.get(f"tokenizer.ggml.{key}") for key in _TELLING),
        capable and model_obstacle(model, model.parameters) is None,
    )


def _compared(pair: Suggestion, vocabularies: Mapping[Installed, LlamaVocabulary | Exception]) -> Suggestion:
    """The pair with its vocabularies compared, token by token, where they are to be had."""
    tokenizers = compared(vocabularies[pair.target], vocabularies[pair.draft])
    return suggested(pair.target, pair.draft, same=not tokenizers.difference, tokenizers=said(tokenizers))
