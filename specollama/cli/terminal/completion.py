"""What a shell offers after Tab: pairs, models, routes, engines.

A fault offers nothing, since there is no place to tell it.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable, Iterable
from pathlib import Path

from specollama.errors import SpecollamaError
from specollama.spec_decode.types import Route

_PATIENCE = 1.0  # seconds that a server has to list its models


def pairs(incomplete: str) -> list[str]:
    """Pairs of the configuration that may be used here, and the embedded one."""
    from specollama.config import trust  # here and below: only a Tab needs them
    from specollama.config.settings import EMBEDDED

    try:
        known = list(trust.configuration(None, os.environ, Path.cwd()).table.pairs)
    except SpecollamaError:
        known = []
    return _beginning(dict.fromkeys([*known, EMBEDDED]), incomplete)


def models(incomplete: str) -> list[str]:
    """Models on $OLLAMA_HOST, else on this machine."""
    return _beginning(_installed(), incomplete)


def drafts(incomplete: str) -> list[str]:
    """The same models, and prompt lookup."""
    return _beginning(["lookup", *_installed()], incomplete)


def routes(incomplete: str) -> list[str]:
    return _beginning(Route, incomplete)


def one_of(names: Iterable[str]) -> Callable[[str], list[str]]:
    """Offers some fixed names."""

    def offered(incomplete: str) -> list[str]:
        return _beginning(names, incomplete)

    return offered


def _installed() -> list[str]:
    try:
        return asyncio.run(_listed())
    except (SpecollamaError, TimeoutError):
        return []


async def _listed() -> list[str]:
    from specollama.backends.ollama.client import OllamaServer
    from specollama.config.endpoints import resolve_host

    endpoint = resolve_host(os.environ)
    async with (
        asyncio.timeout(_PATIENCE),
        OllamaServer(endpoint.url, **endpoint.connection_settings(os.environ)) as server,
    ):
        return [each.name.removesuffix(":latest") for each in await server.tags()]


def _beginning(names: Iterable[str], incomplete: str) -> list[str]:
    return [str(name) for name in names if str(name).startswith(incomplete)]
