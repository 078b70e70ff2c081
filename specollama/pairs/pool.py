"""Opens the configured pairs once for all requests, and finds the pair for a model name."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import AsyncExitStack
from dataclasses import dataclass
from types import TracebackType
from typing import TYPE_CHECKING, Self

from specollama.backends.ollama.model_name import full_name
from specollama.config.loading import Config
from specollama.config.settings import ModelRef, PairSettings
from specollama.pairs.pair import Pair
from specollama.pairs.slots import SlotPool, slots_of

if TYPE_CHECKING:
    from specollama.pairs.trace.recorder import TraceFile


@dataclass(frozen=True, slots=True)
class PairEntry:
    """An open pair. `slots`: the slots of its target, which other pairs may share."""

    name: str
    pair: Pair
    slots: SlotPool
    intercept: bool = True
    trace: TraceFile | None = None  # the file to which its replies are recorded

    @property
    def settings(self) -> PairSettings:
        return self.pair.settings


class PairPool:
    """All pairs of a configuration. Use it as an async context manager, in one event loop.

    Raises ConfigError when a variable that holds a token isn't set.
    """

    def __init__(self, config: Config, environ: Mapping[str, str], trace: TraceFile | None = None) -> None:
        lanes: dict[tuple[str, str], SlotPool] = {}
        self.pairs = {name: _opened(name, config, environ, lanes, trace) for name in config.table.pairs}
        self._names = {full_name(name): opened for name, opened in self.pairs.items()}
        self._targets = _targets(self.pairs, config.table.default_pair)
        self._stack = AsyncExitStack()

    async def __aenter__(self) -> Self:
        for opened in self.pairs.values():
            await self._stack.enter_async_context(opened.pair)
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self._stack.aclose()

    def get(self, model: object) -> PairEntry | None:
        """Return the pair with this name, or None."""
        return self._names.get(full_name(model)) if isinstance(model, str) and model else None

    def find(self, model: object) -> PairEntry | None:
        """Return the pair with this name, or one whose target has this name; None if the request is not for a pair."""
        if not isinstance(model, str) or not model:
            return None
        return self.get(model) or self._targets.get(full_name(model))


def _opened(
    name: str,
    config: Config,
    environ: Mapping[str, str],
    lanes: dict[tuple[str, str], SlotPool],
    trace: TraceFile | None,
) -> PairEntry:
    settings = config.pair(name, environ)
    url = settings.target.endpoint.url if isinstance(settings.target, ModelRef) else ""
    target = (url, full_name(settings.target.model))
    total = slots_of(settings)
    shared = lanes.setdefault(target, SlotPool(total))
    shared.total = min(shared.total, total)
    return PairEntry(name, Pair(settings, environ), shared, config.table.pairs[name].intercept, trace)


def _targets(pairs: Mapping[str, PairEntry], default: str | None) -> dict[str, PairEntry]:
    """Pairs by target name. The default pair has priority, then the order of the configuration file."""
    ordered = sorted(pairs.values(), key=lambda opened: opened.name != default)
    found: dict[str, PairEntry] = {}
    for opened in ordered:
        if opened.intercept:
            found.setdefault(full_name(opened.settings.target.model), opened)
    return found
