"""Names of models, matched as Ollama matches them.

`Qwen2.5:0.5b`, `library/qwen2.5:0.5b` and `https://registry.ollama.ai/library/qwen2.5:0.5b` are the same model: case
doesn't count, the scheme neither, and what is left out is `registry.ollama.ai/library/` and `:latest`.
"""

from __future__ import annotations

from typing import NamedTuple

HOST, NAMESPACE, TAG = "registry.ollama.ai", "library", "latest"


class ModelName(NamedTuple):
    """The four parts of a name, as written; those left out are Ollama's defaults."""

    host: str
    namespace: str
    model: str
    tag: str


def parse_name(name: str) -> ModelName:
    """Ollama's `model.ParseName`: the parts are cut off from the right, so that a host keeps its port."""
    path, tag = name, ""
    if name.rfind(":") > name.rfind("/"):
        path, _, tag = name.rpartition(":")
    path, _, model = path.rpartition("/")
    path, _, namespace = path.rpartition("/")
    host = path.partition("://")[2] if "://" in path else path
    return ModelName(host or HOST, namespace or NAMESPACE, model, tag or TAG)


def full_name(name: str) -> str:
    """The form that all spellings of a model's name share, as Ollama lists it: lower case, with its tag."""
    host, namespace, model, tag = (part.lower() for part in parse_name(name))
    shown = [] if host == HOST and namespace == NAMESPACE else [namespace] if host == HOST else [host, namespace]
    return f"{'/'.join([*shown, model])}:{tag}"
