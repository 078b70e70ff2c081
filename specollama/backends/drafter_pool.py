"""Several drafters for one reply: in each round the one with the largest expected gain drafts."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from time import perf_counter
from typing import Protocol

from specollama.backends.prompt_lookup import LookupDrafter
from specollama.spec_decode.interfaces import Drafter
from specollama.spec_decode.planner import Planner
from specollama.spec_decode.types import Draft, VerifyResult

_TOKENS_PER_REQUEST = 8  # tokens: once asked for, they are drafted whatever their worth


class DraftModel(Protocol):
    """A drafter with a model, which must prefill the text before it can draft."""

    name: str

    def uncached_tokens(self, text: str) -> int:
        """Tokens of the text that the model would have to prefill."""
        ...

    async def propose(self, text: str, count: int) -> Draft: ...

    def learn(self, verdict: VerifyResult) -> None: ...


class ServedDraftModel:
    """A draft model that a server runs: a few tokens a request. Its prefill isn't known here."""

    def __init__(self, name: str, drafter: Drafter) -> None:
        self.name = name
        self.drafter = drafter

    def uncached_tokens(self, text: str) -> int:
        return 0

    async def propose(self, text: str, count: int) -> Draft:
        began = perf_counter()
        draft = await self.drafter.propose(text, min(count, _TOKENS_PER_REQUEST))
        step = (perf_counter() - began) / max(1, len(draft.tokens))
        return replace(draft, source=self.name, step_seconds=(step,) * len(draft.tokens))

    def learn(self, verdict: VerifyResult) -> None:
        self.drafter.learn(verdict)


class LookupThenModel:
    """Prompt lookup's proposal, or a draft of the model where lookup finds nothing."""

    def __init__(self, lookup: Drafter, model: Drafter | None) -> None:
        self._lookup = lookup
        self._model = model

    async def propose(self, text: str, count: int) -> Draft:
        found = await self._lookup.propose(text, count)
        return found if found.tokens or self._model is None else await self._model.propose(text, count)

    def learn(self, verdict: VerifyResult) -> None:
        self._lookup.learn(verdict)
        if self._model is not None:
            self._model.learn(verdict)


class DrafterPool:
    """Chooses between prompt lookup and the draft models by expected gain."""

    def __init__(self, lookup: LookupDrafter | None, models: Sequence[DraftModel], planner: Planner) -> None:
        self._lookup = lookup
        self._models = {model.name: model for model in models}
        self._planner = planner
        self._found = Draft()  # by lookup, and not taken

    async def propose(self, text: str, count: int) -> Draft:
        found = await self._lookup.propose(text, count) if self._lookup else Draft()
        hoped = self._planner.net_gain(found) if found.tokens else 0.0
        unread = {name: model.uncached_tokens(text) for name, model in self._models.items()}
        chosen = self._planner.pick_drafter(unread, instead=hoped)
        self._found = found if chosen else Draft()
        return await self._models[chosen].propose(text, count) if chosen else found

    def learn(self, verdict: VerifyResult) -> None:
        if self._found.tokens:
            self._planner.observe_unused(self._found, verdict)
        for model in self._models.values():
            model.learn(verdict)
