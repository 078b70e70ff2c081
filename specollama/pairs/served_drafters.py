"""Draft models on a server of their own, and whether they draft while the target verifies."""

from __future__ import annotations

from collections.abc import Iterable

from specollama.backends.drafter_pool import ServedDraftModel
from specollama.backends.llama_cpp.tokenizer import LlamaTokenizer
from specollama.backends.ollama.drafter import OllamaDrafter, RetokenizingDrafter
from specollama.backends.ollama.model_info import ModelInfo, forwarded_options
from specollama.backends.ollama.request_bodies import RequestTemplate
from specollama.config.endpoints import on_different_machines
from specollama.config.settings import PairSettings
from specollama.pairs.feasibility import ReplyContext
from specollama.spec_decode.draft_ahead import DraftAhead
from specollama.spec_decode.interfaces import Drafter
from specollama.spec_decode.types import AcceptanceMethod


def request_template(model: ModelInfo, context: ReplyContext) -> RequestTemplate:
    """The requests to a model of the pair during one reply."""
    return RequestTemplate(
        model.name, context.sampling, forwarded_options(context.options), context.settings.keep_alive
    )


def make_served_drafter(
    model: ModelInfo,
    context: ReplyContext,
    target: str,
    vocabulary: LlamaTokenizer | None = None,
) -> ServedDraftModel:
    """A draft model on a server, for a target whose planner decides the draft length. `target`: a URL of its machine.

    `vocabulary`: the target's tokenizer, if drafts must come in its tokens.
    """
    requests = request_template(model, context)
    drafter: Drafter = OllamaDrafter(
        model.server, requests, rule=AcceptanceMethod.MATCH, seed=0, row_tokens=model.row_tokens
    )
    if vocabulary is not None:
        drafter = RetokenizingDrafter(drafter, vocabulary)
    ahead = runs_ahead(context.settings, target, model.server.url)
    return ServedDraftModel(model.name, DraftAhead(drafter) if ahead else drafter)


def ahead_drafters(drafters: Iterable[ServedDraftModel]) -> list[DraftAhead]:
    """The drafters that draft while the target verifies."""
    return [each.drafter for each in drafters if isinstance(each.drafter, DraftAhead)]


def runs_ahead(settings: PairSettings, target: str, draft: str) -> bool:
    """Whether to draft while the target verifies: as configured, else if the URLs are of different machines."""
    return on_different_machines(target, draft) if settings.draft_ahead is None else settings.draft_ahead
