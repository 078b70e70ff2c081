"""Whether an engine would take a draft model for a target: its own rules, run before it is started."""

from __future__ import annotations

from specollama.backends.facts import first_difference
from specollama.errors import UnsupportedPair
from specollama.export.models import Described

_LLAMA_SLACK = 128  # tokens that one vocabulary may have more than the other
_LLAMA_FIRST = 5  # the first token that has to be the same: those before it are often special


def check_llama_cpp(target: Described, draft: Described, engine: str) -> None:
    """llama.cpp: the same kind, begin and end markers, about the same size, the same tokens. Raises UnsupportedPair."""
    ours, theirs = target.tokens, draft.tokens
    _same(target, draft, "tokenizer.ggml.model", "another kind of vocabulary", engine)
    for marker in ("bos", "eos"):
        if {_adds(target, marker), _adds(draft, marker)} == {True, False}:
            raise _refused(target, draft, engine, f"{marker} is added to one of them only")
        if target.metadata.get(f"tokenizer.ggml.add_{marker}_token"):
            _same(target, draft, f"tokenizer.ggml.{marker}_token_id", f"another {marker} token", engine)
    if abs(len(ours) - len(theirs)) > _LLAMA_SLACK:
        sizes = f"{len(theirs)} tokens against {len(ours)}, and no more than {_LLAMA_SLACK} may be missing"
        raise _refused(target, draft, engine, sizes)
    if (place := first_difference(theirs[_LLAMA_FIRST:], ours[_LLAMA_FIRST:])) is not None:
        token = place + _LLAMA_FIRST
        raise _refused(target, draft, engine, f"token {token} is {theirs[token]!r} and {ours[token]!r}")


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


def _adds(model: Described, marker: str) -> bool | None:
    """Whether the marker is added. None: the file leaves it to its vocabulary's kind; no end is added then."""
    said = model.metadata.get(f"tokenizer.ggml.add_{marker}_token")
    return False if said is None and marker == "eos" else said


def _same(target: Described, draft: Described, key: str, what: str, engine: str) -> None:
    if target.metadata.get(key) != draft.metadata.get(key):
        raise _refused(target, draft, engine, what)


def _refused(target: Described, draft: Described, engine: str, why: str) -> UnsupportedPair:
    return UnsupportedPair(f"{engine} would not let {draft.name} draft for {target.name}: {why}")
