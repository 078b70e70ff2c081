"""The tokenizers of a pair, and whether they are the same."""

from __future__ import annotations

from dataclasses import dataclass

from specollama.backends.llama_cpp.draft_compatibility import first_difference
from specollama.backends.llama_cpp.tokenizer import LlamaTokenizer


@dataclass(frozen=True, slots=True)
class TokenizerMatch:
    """What is known of a pair's tokenizers.

    `same`: the draft model's tokens are the target's; `difference` says where not, `why_not_exact` why the target's
    tokenizer isn't there.
    """

    target: LlamaTokenizer | None = None
    same: bool = False
    difference: str = ""
    why_not_exact: str = ""


def compare_tokenizers(target: LlamaTokenizer | Exception, draft: LlamaTokenizer | Exception | None) -> TokenizerMatch:
    """Compare both tokenizers. An exception in a tokenizer's place says why it is missing; None: no model drafts."""
    if isinstance(target, Exception):
        return TokenizerMatch(why_not_exact=str(target))
    if draft is None:
        return TokenizerMatch(target)
    if isinstance(draft, Exception):
        return TokenizerMatch(target, difference=f"the draft's isn't known: {draft}")
    token = first_difference(draft.all_texts(), target.all_texts())
    if token is None:
        return TokenizerMatch(target, same=True)
    ours, theirs = target.all_texts()[token], draft.all_texts()[token]
    return TokenizerMatch(target, difference=f"token {token} is {ours!r} for the target and {theirs!r} for the draft")
