"""The tokenizers of a pair, and whether they are the same."""

from __future__ import annotations

from dataclasses import dataclass

from specollama.backends.llama_cpp.draft_compatibility import first_difference
from specollama.backends.llama_cpp.tokenizer import LlamaVocabulary


@dataclass(frozen=True, slots=True)
class Tokenizers:
    """What is known of a pair's tokenizers.

    `same`: the draft model's tokens are the target's; `difference` says where not, `why_not_exact` why the target's
    tokenizer isn't there.
    """

    target: LlamaVocabulary | None = None
    same: bool = False
    difference: str = ""
    why_not_exact: str = ""


def compared(target: LlamaVocabulary | Exception, draft: LlamaVocabulary | Exception | None) -> Tokenizers:
    """Both tokenizers beside each other; an exception says why one isn't there. None: no model drafts."""
    if isinstance(target, Exception):
        return Tokenizers(why_not_exact=str(target))
    if draft is None:
        return Tokenizers(target)
    if isinstance(draft, Exception):
        return Tokenizers(target, difference=f"the draft's isn't known: {draft}")
    token = first_difference(draft.tokens(), target.tokens())
    if token is None:
        return Tokenizers(target, same=True)
    ours, theirs = target.tokens()[token], draft.tokens()[token]
    return Tokenizers(target, difference=f"token {token} is {ours!r} for the target and {theirs!r} for the draft")
