"""llama.cpp's conditions for a draft/target pair, checked from GGUF metadata."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

_SLACK = 128  # tokens; largest difference of the two vocabulary sizes
_FIRST = 5  # the first token id that is compared: the ones before it are often special tokens

Metadata = Mapping[str, Any]


def why_incompatible(target: Metadata, draft: Metadata) -> str:
    """Why the draft model can't serve the target, in one line; "" if it can, as far as the metadata shows.

    The conditions are llama.cpp's (b10488): the same vocabulary type, BOS and EOS tokens, the same tokens, and about
    the same vocabulary size.
    """
    return _other_kind(target, draft) or _other_markers(target, draft) or _other_tokens(target, draft)


def _other_kind(target: Metadata, draft: Metadata) -> str:
    return "another kind of vocabulary" if _differ(target, draft, "model") else ""


def _other_markers(target: Metadata, draft: Metadata) -> str:
    for marker in ("bos", "eos"):
        if {_adds(target, marker), _adds(draft, marker)} == {True, False}:
            return f"{marker} is added to one of them only"
        if _adds(target, marker) and _differ(target, draft, f"{marker}_token_id"):
            return f"another {marker} token"
    return ""


def _other_tokens(target: Metadata, draft: Metadata) -> str:
    target_tokens, draft_tokens = ([*(model.get("tokenizer.ggml.tokens") or ())] for model in (target, draft))
    if abs(len(target_tokens) - len(draft_tokens)) > _SLACK:
        return f"{len(draft_tokens)} tokens against {len(target_tokens)}, and no more than {_SLACK} may be missing"
    if (place := first_difference(draft_tokens[_FIRST:], target_tokens[_FIRST:])) is None:
        return ""
    token = place + _FIRST
    return f"token {token} is {target_tokens[token]!r} for the target and {draft_tokens[token]!r} for the draft"


def _adds(model: Metadata, marker: str) -> bool | None:
    """Whether the tokenizer adds this marker. None: the metadata doesn't say, and the vocabulary type decides.

    Without a word in the metadata no EOS token is added.
    """
    adds = model.get(f"tokenizer.ggml.add_{marker}_token")
    return False if adds is None and marker == "eos" else adds


def _differ(target: Metadata, draft: Metadata, key: str) -> bool:
    return bool(target.get(f"tokenizer.ggml.{key}") != draft.get(f"tokenizer.ggml.{key}"))


def first_difference(draft: list[str], target: list[str]) -> int | None:
    """The first token id at which two vocabularies differ; None when they are the same.

    Entries that only the longer vocabulary has count as padding: sizes of 151936 and 152064 may be the same vocabulary.
    """
    pairs = enumerate(zip(draft, target, strict=False))
    return next((token for token, (draft_token, target_token) in pairs if draft_token != target_token), None)
