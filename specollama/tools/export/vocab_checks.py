"""Whether an engine would take a draft model for a target: its own rules, run before it is started."""

from __future__ import annotations

from specollama.backends.llama_cpp.draft_compatibility import first_difference, why_incompatible
from specollama.errors import UnsupportedPair
from specollama.tools.export.model_facts import ModelFacts


def check_llama_cpp(target: ModelFacts, draft: ModelFacts, engine: str) -> None:
    """Raises UnsupportedPair where llama.cpp's conditions don't hold."""
    if why := why_incompatible(target.metadata, draft.metadata):
        raise _error_of_response(target, draft, engine, why)


def check_same_tokenizer(target: ModelFacts, draft: ModelFacts, engine: str, *, padding: bool) -> None:
    """One tokenizer for both, as its drafted ids are taken for the target's. `padding`: sizes may differ beyond it.

    Raises UnsupportedPair.
    """
    ours, theirs = target.tokens, draft.tokens
    if (token := first_difference(theirs, ours)) is not None:
        raise _error_of_response(target, draft, engine, f"token {token} is {theirs[token]!r} and {ours[token]!r}")
    if not padding and len(ours) != len(theirs):
        raise _error_of_response(target, draft, engine, f"{len(theirs)} tokens against {len(ours)}, padding included")


def both_known(target: ModelFacts, draft: ModelFacts) -> bool:
    """Whether both vocabularies can be looked at."""
    return bool(target.tokens and draft.tokens)


def _error_of_response(target: ModelFacts, draft: ModelFacts, engine: str, why: str) -> UnsupportedPair:
    return UnsupportedPair(f"{engine} would not let {draft.name} draft for {target.name}: {why}")
