"""Draft models on a server of their own, and whether they draft while the target verifies."""

from __future__ import annotations

from collections.abc import Iterable

from specollama.backends.drafter_pool import ServedDrafter
from specollama.backends.llama_cpp.tokenizer import LlamaVocabulary
from specollama.backends.ollama.drafter import OllamaDrafter, RetokenisedDrafter
from specollama.backends.ollama.model_info import Model, passed_on
from specollama.backends.ollama.request_bodies import Requests
from specollama.config.endpoints import apart
from specollama.config.settings import PairSettings
from specollama.pairs.feasibility import ReplyContext
from specollama.spec_decode.draft_ahead import DraftAhead
from specollama.spec_decode.interfaces import Drafter
from specollama.spec_decode.types import Rule


def requests_for(model: Model, context: ReplyContext) -> Requests:
    """What a model of the pair is asked in the course of a reply."""
    return Requests(model.name, context.sampling, passed_on(context.options), context.settings.keep_alive)


def served(
    model: Model,
    context: ReplyContext,
    target: str,
    vocabulary: LlamaVocabulary | None = None,
) -> ServedDrafter:
    """A draft model on its own server, for a target that a planner drafts for. `target`: a URL of its machine.

    `vocabulary`: the target's, where drafts are to come in its tokens.
    """
    requests = requests_for(model, context)
    drafter: Drafter = OllamaDrafter(model.server, requests, rule=Rule.MATCH, seed=0, row_tokens=model.row_tokens)
    if vocabulary is not None:
        drafter = RetokenisedDrafter(drafter, vocabulary)
    ahead = runs_ahead(context.settings, target, model.server.url)
    return ServedDrafter(model.name, DraftAhead(drafter) if ahead else drafter)


def drafting_ahead(drafters: Iterable[ServedDrafter]) -> list[DraftAhead]:
    """Those of them that draft while the target verifies."""
    return [each.drafter for each in drafters if isinstance(each.drafter, DraftAhead)]


def runs_ahead(settings: PairSettings, target: str, draft: str) -> bool:
    """As it is set, else where these URLs are of different machines."""
    return apart(target, draft) if settings.draft_ahead is None else settings.draft_ahead
