"""Inspect a server: its version, engine, models and round-trip time."""

from __future__ import annotations

import asyncio
from time import perf_counter

from specollama.backends.ollama.client import OllamaServer
from specollama.backends.ollama.model_info import DEVELOPMENT_VERSION, parsed_version
from specollama.backends.ollama.schema import RunningModel
from specollama.config.endpoints import Endpoint, loopback_port
from specollama.errors import EndpointError
from specollama.tools.doctor.advice import known_faults
from specollama.tools.doctor.findings import Loaded, ServerFinding
from specollama.tools.native_server import MIN_VERSION


async def inspect_server(server: OllamaServer, endpoint: Endpoint) -> ServerFinding:
    """Inspect a server without loading a model."""
    here = loopback_port(endpoint.url) is not None
    try:
        version = await server.version()
        began = perf_counter()
        await server.version()  # the first one may have made the connection
        round_trip = perf_counter() - began
        listed, running = await asyncio.gather(server.tags(), server.ps())
    except EndpointError as error:
        return ServerFinding(endpoint.url, endpoint.source, here, str(error))
    number = parsed_version(version)
    return ServerFinding(
        endpoint.url,
        endpoint.source,
        here,
        version=version,
        engine="llama-server" if number == DEVELOPMENT_VERSION or number >= MIN_VERSION else "Go runner",
        round_trip=round_trip,
        models=tuple(model.name for model in listed),
        loaded=tuple(map(_loaded, running.models)),
        known_faults=known_faults(number, development=number == DEVELOPMENT_VERSION),
    )


def _loaded(model: RunningModel) -> Loaded:
    on_gpu = model.size_vram / model.size if model.size else None
    return Loaded(model.name, model.context_length or None, on_gpu)
