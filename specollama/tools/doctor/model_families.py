"""Families of models in Ollama's library that have a small member to draft for the large ones.

Within a family the tokenizer is the same up to padding (Qwen2.5 with 151936 and 152064 entries, Gemma 3 with 262144 and
262208), so that drafts are the target's own tokens, except where `same` says otherwise: the text's tokens are, and some
control tokens aren't. What is installed is compared token by token nevertheless.
"""

from __future__ import annotations

import re
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Family:
    """`targets`: names that it drafts for, without their tag; `draft`: to pull; `billions`: its parameters."""

    targets: tuple[str, ...]
    draft: str
    billions: float
    same: bool = True


FAMILIES = (
    Family(("qwen2.5-coder",), "qwen2.5-coder:0.5b", 0.5),
    Family(("qwen2.5",), "qwen2.5:0.5b", 0.5),
    Family(("qwen3",), "qwen3:0.6b", 0.6),
    Family(("llama3.1", "llama3.2", "llama3.3"), "llama3.2:1b", 1.2),
    Family(("llama3",), "llama3.2:1b", 1.2, same=False),
    Family(("gemma3",), "gemma3:270m", 0.27),
    Family(("gemma2",), "gemma2:2b", 2.6),
    Family(("smollm2",), "smollm2:135m", 0.135),
    Family(("falcon3",), "falcon3:1b", 1.7),
)
"""From Qwen's, Meta's, Google's, Hugging Face's and TII's model cards."""

_WORTH = 4.0  # times the draft's size, from which a target is large enough for it
_FULL = re.compile(r"(?:.*/)?(?P<name>[^/:]+)(?::(?P<tag>[^/]*))?$")


def family_of(model: str, billions: float | None = None) -> Family | None:
    """The family in which a better draft may be had for a model; None where none is known, or it is too small itself.

    A model of another publisher (`user/name`, `hf.co/user/repo`) isn't known by its name.
    """
    found = _FULL.fullmatch(model.lower().removeprefix("library/"))
    if found is None or "/" in model.removeprefix("library/"):
        return None
    family = next((each for each in FAMILIES if found["name"] in each.targets), None)
    if family is None or (billions is not None and billions < _WORTH * family.billions):
        return None
    return family
