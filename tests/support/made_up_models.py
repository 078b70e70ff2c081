"""A model as its server describes it, on a server that isn't there."""

from __future__ import annotations

from typing import Any

from specollama.backends.ollama.client import OllamaServer
from specollama.backends.ollama.model_info import ModelInfo, parsed_version
from specollama.backends.ollama.schema import ShowReply


def model(version: str = "0.33.0", name: str = "m", **show: Any) -> ModelInfo:
    return ModelInfo(name, OllamaServer("http://127.0.0.1:1"), parsed_version(version), ShowReply(**show), "ab")
