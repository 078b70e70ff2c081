"""The engines that can score a target's tokens, and which one answers at an endpoint."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import AsyncExitStack

from specollama.backends.engines.base import Engine
from specollama.backends.engines.chat_completions import list_models
from specollama.backends.engines.client import EngineClient, EngineKind
from specollama.backends.engines.llama_server import LlamaServer
from specollama.backends.engines.replicas import Replicas
from specollama.backends.engines.sglang import SGLang
from specollama.backends.engines.tensorrt_llm import TensorRTLLM
from specollama.backends.engines.vllm import VLLM
from specollama.config.endpoints import Endpoint
from specollama.config.settings import ModelRef
from specollama.errors import EndpointError
from specollama.spec_decode.types import ServerApi

Client = type[VLLM] | type[SGLang] | type[TensorRTLLM] | type[LlamaServer]

CLIENTS: dict[ServerApi, Client] = {
    ServerApi.VLLM: VLLM,
    ServerApi.SGLANG: SGLang,
    ServerApi.TENSORRT_LLM: TensorRTLLM,
    ServerApi.LLAMA_SERVER: LlamaServer,
}
_OWNERS = {
    "vllm": ServerApi.VLLM,
    "sglang": ServerApi.SGLANG,
    "tensorrt_llm": ServerApi.TENSORRT_LLM,
    "llamacpp": ServerApi.LLAMA_SERVER,
}


class _Unknown(EngineClient):
    kind = EngineKind("an engine")


async def detect(endpoint: Endpoint, environ: Mapping[str, str]) -> ServerApi | None:
    """The engine at the endpoint, by the `owned_by` of its models; None for any other server."""
    async with _Unknown(endpoint.url, **endpoint.connection_settings(environ)) as server:
        try:
            listed = await list_models(server)
        except EndpointError:
            return None
    owners = (_OWNERS.get(model.owned_by) for model in listed.values())
    return next((api for api in owners if api), None)


async def open_engine(target: ModelRef, api: ServerApi, environ: Mapping[str, str], stack: AsyncExitStack) -> Engine:
    """A client of the engine at the target's endpoints; `stack` closes it. Sends no request."""
    client = CLIENTS[api]
    engines = [client(at.url, model=target.model, **at.connection_settings(environ)) for at in target.endpoints]
    for engine in engines:
        await stack.enter_async_context(engine)
    return engines[0] if len(engines) == 1 else Replicas(engines)
