"""Which Hugging Face repository holds a model's weights: by flag, its GGUF's own word, its name, or a short table."""

from __future__ import annotations

import re
from dataclasses import dataclass

from specollama.errors import UsageError
from specollama.tools.export.model_facts import ModelFacts

_FAMILIES = {
    "qwen2.5": ("Qwen/Qwen2.5-{}B-Instruct", "0.5 1.5 3 7 14 32 72"),
    "qwen2.5-coder": ("Qwen/Qwen2.5-Coder-{}B-Instruct", "0.5 1.5 3 7 14 32"),
    "qwen3": ("Qwen/Qwen3-{}B", "0.6 1.7 4 8 14 32"),
    "llama3.1": ("meta-llama/Llama-3.1-{}B-Instruct", "8 70 405"),
    "llama3.2": ("meta-llama/Llama-3.2-{}B-Instruct", "1 3"),
    "llama3.3": ("meta-llama/Llama-3.3-{}B-Instruct", "70"),
    "gemma3": ("google/gemma-3-{}b-it", "1 4 12 27"),
}
"""Ollama's library names whose plain tags are the instruct models of these repositories."""

_SOURCES = ("general.source.repo_url", "general.source.url", "general.source.huggingface.repository")
_QUANTISED = re.compile(r"[-_. ]?(gguf|awq|gptq|q\d\w*|fp16|bf16|f16)\b", re.IGNORECASE)


@dataclass(frozen=True, slots=True)
class Repository:
    """`known_by`: where that comes from, for the reader to judge."""

    name: str
    known_by: str


def find_repository(model: ModelFacts, flag: str, given: str | None) -> Repository:
    """The repository of a model's unquantised weights. Raises UsageError where it would have to be guessed.

    `flag`: that which gives it, `given`: what it gave.
    """
    if given is not None:
        if not re.fullmatch(r"[\w.-]+/[\w.-]+", given):
            raise UsageError(f"--{flag} {given}: must be OWNER/NAME of a repository on huggingface.co")
        return Repository(given, f"--{flag}")
    found = _served(model) or _source(model) or _base(model) or _library(model.name) or _hf_name(model.name)
    if found is None:
        hint = f" ({candidate} is what it was made from, maybe)" if (candidate := _base_repository(model)) else ""
        words = f"which Hugging Face repository holds {model.name} isn't known{hint}; give it as --{flag} OWNER/NAME"
        raise UsageError(words)
    return found


def _served(model: ModelFacts) -> Repository | None:
    """The name under which an engine of this kind serves it already."""
    known = not model.metadata and re.fullmatch(r"[\w.-]+/[\w.-]+", model.name)
    return Repository(model.name, "the name it is served by") if known else None


def _source(model: ModelFacts) -> Repository | None:
    for key in _SOURCES:
        if name := _of_url(str(model.metadata.get(key, ""))):
            return Repository(name, f"{key} of its GGUF")
    return None


def _base(model: ModelFacts) -> Repository | None:
    """What it was made from, where that has its name: else it is the untuned model behind an instruct one."""
    base, own = _base_repository(model), str(model.metadata.get("general.name", ""))
    names = {_plain(own), _plain(model.name.rpartition("/")[2].partition(":")[0])}
    if base and _plain(base.rpartition("/")[2]) in names:
        return Repository(base, "general.base_model.0.repo_url of its GGUF, which has its name")
    return None


def _base_repository(model: ModelFacts) -> str:
    return _of_url(str(model.metadata.get("general.base_model.0.repo_url", "")))


def _library(name: str) -> Repository | None:
    family, _, tag = name.removeprefix("library/").partition(":")
    size = re.fullmatch(r"(\d+(?:\.\d+)?)b(-instruct)?(-q\w+|-fp16)?", tag, re.IGNORECASE)
    if size is None or family not in _FAMILIES:
        return None
    pattern, sizes = _FAMILIES[family]
    return Repository(pattern.format(size[1]), "Ollama's library name") if size[1] in sizes.split() else None


def _hf_name(name: str) -> Repository | None:
    """`hf.co/OWNER/NAME-GGUF:QUANT`: the files beside it, without the ending."""
    match = re.match(r"(?:hf\.co|huggingface\.co)/([\w.-]+/[\w.-]+?)-gguf(?::|$)", name, re.IGNORECASE)
    return Repository(match[1], f"the name {name} without -GGUF: see that it is there") if match else None


def _of_url(text: str) -> str:
    match = re.fullmatch(r"(?:https?://huggingface\.co/)?([\w.-]+/[\w.-]+?)/?", text)
    return match[1] if match and not _QUANTISED.search(match[1]) else ""


def _plain(name: str) -> str:
    return re.sub(r"[\W_]", "", _QUANTISED.sub("", name)).lower()
