"""Combines several drafters for one reply: each round uses the one with the highest expected gain."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from time import perf_counter
from typing import Protocol

from specollama.backends.prompt_lookup import LookupDrafter
from specollama.errors import RunError
from specollama.spec_decode.interfaces import Drafter
from specollama.spec_decode.planner import Planner
from specollama.spec_decode.types import Draft, VerifyResult

_TOKENS_PER_REQUEST = 8  # tokens: a request can't stop early when confidence falls


class DraftModel(Protocol):
    """A drafter with a model, which must prefill the text before it can draft."""

    name: str

    def uncached_tokens(self, text: str) -> int:
        """Tokens of the text that are not in its KV cache."""
        ...

    async def propose(self, text: str, count: int) -> Draft: ...

    def learn(self, verdict: VerifyResult) -> None: ...


class ServedDraftModel:
    """A draft model on a server: drafts a few tokens per request. Its prefill cost is unknown and taken as 0."""

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
    """Drafts by prompt lookup; if lookup finds nothing, by the model, if there is one."""

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
    """Chooses between prompt lookup and the best model by the expected gain of their drafts.

    A model that fails is left out of the rest of the reply, and `notify` is called with its name and the reason. Raises
    RunError when nothing else is left to draft.
    """

    def __init__(
        self,
        lookup: LookupDrafter | None,
        models: Sequence[DraftModel],
        planner: Planner,
        notify: Callable[[str], None],
    ) -> None:
        self._lookup = lookup
        self._notify = notify
        self._models = {model.name: model for model in models}
        self._planner = planner
        self._found = Draft()  # lookup's draft, if a model's draft was used instead

    async def propose(self, text: str, count: int) -> Draft:
        found = await self._lookup.propose(text, count) if self._lookup else Draft()
        lookup_gain = self._planner.net_gain(found) if found.tokens else 0.0
        unread = {name: model.uncached_tokens(text) for name, model in self._models.items()}
        chosen = self._planner.pick_drafter(unread, instead=lookup_gain)
        self._found = found if chosen else Draft()
        if not chosen:
            return found
        try:
            return await self._models[chosen].propose(text, count)
        except RunError as error:
            del self._models[chosen]
            if not self._models and self._lookup is None:
                raise
            self._notify(f"{chosen} drafts no more in this reply: {error}")
            self._found = Draft()
            return found

    def learn(self, verdict: VerifyResult) -> None:
        if self._found.tokens:
            self._planner.observe_unused(self._found, verdict)
        for model in self._models.values():
            model.learn(verdict)
