"""llama.cpp's conditions for a draft/target pair, checked from GGUF metadata."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

_SLACK = 128  # tokens that one vocabulary may have more than the other
_FIRST = 5  # the first token that has to be the same: those before it are often special

Metadata = Mapping[str, Any]


def why_incompatible(target: Metadata, draft: Metadata) -> str:
    """llama.cpp's conditions (b10488): the same kind, begin and end markers, about the same size, the same tokens.

    Why they don't hold, in a line; "" where they do, as far as the metadata says.
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
    ours, theirs = ([*(model.get("tokenizer.ggml.tokens") or ())] for model in (target, draft))
    if abs(len(ours) - len(theirs)) > _SLACK:
        return f"{len(theirs)} tokens against {len(ours)}, and no more than {_SLACK} may be missing"
    if (place := first_difference(theirs[_FIRST:], ours[_FIRST:])) is None:
        return ""
    token = place + _FIRST
    return f"token {token} is {ours[token]!r} for the target and {theirs[token]!r} for the draft"


def _adds(model: Metadata, marker: str) -> bool | None:
    """Whether the marker is added. None: the file leaves it to its vocabulary's kind; no end is added then."""
    said = model.get(f"tokenizer.ggml.add_{marker}_token")
    return False if said is None and marker == "eos" else said


def _differ(target: Metadata, draft: Metadata, key: str) -> bool:
    return bool(target.get(f"tokenizer.ggml.{key}") != draft.get(f"tokenizer.ggml.{key}"))


def first_difference(draft: list[str], target: list[str]) -> int | None:
    """The first token at which two vocabularies differ; None when they are the same.

    What only the longer one has is padding: sizes of 151936 and 152064 with the same entries are the same.
    """
    pairs = enumerate(zip(draft, target, strict=False))
    return next((token for token, (ours, theirs) in pairs if ours != theirs), None)
