"""Whether an engine would take a draft model for a target: its own rules, run before it is started."""

from __future__ import annotations

from specollama.backends.llama_cpp.draft_compatibility import first_difference, why_unfit
from specollama.errors import UnsupportedPair
from specollama.tools.export.model_facts import Described


def check_llama_cpp(target: Described, draft: Described, engine: str) -> None:
    """Raises UnsupportedPair where llama.cpp's conditions don't hold."""
    if why := why_unfit(target.metadata, draft.metadata):
        raise _refused(target, draft, engine, why)


def check_same(target: Described, draft: Described, engine: str, *, padding: bool) -> None:
    """One tokenizer for both, as its drafted ids are taken for the target's. `padding`: sizes may differ beyond it.

    Raises UnsupportedPair.
    """
    ours, theirs = target.tokens, draft.tokens
    if (token := first_difference(theirs, ours)) is not None:
        raise _refused(target, draft, engine, f"token {token} is {theirs[token]!r} and {ours[token]!r}")
    if not padding and len(ours) != len(theirs):
        raise _refused(target, draft, engine, f"{len(theirs)} tokens against {len(ours)}, padding included")


def known(target: Described, draft: Described) -> bool:
    """Whether both vocabularies can be looked at."""
    return bool(target.tokens and draft.tokens)


def _refused(target: Described, draft: Described, engine: str, why: str) -> UnsupportedPair:
    return UnsupportedPair(f"{engine} would not let {draft.name} draft for {target.name}: {why}")
