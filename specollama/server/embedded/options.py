"""Ollama's `options`: their defaults, their types, and what llama-server is told."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict
from typing import Any

from specollama.errors import ApiError
from specollama.spec_decode.types import OPTION_TYPES, SamplingOptions

DEFAULTS: Mapping[str, Any] = {**asdict(SamplingOptions()), "num_keep": 4, "seed": -1, "stop": []}
"""Of Ollama 0.33. `num_predict`, `num_keep`, `repeat_last_n` in tokens; a seed of -1 is a random one."""

_TYPES: Mapping[str, Any] = {**OPTION_TYPES, "num_keep": int}
_LOAD_TIME = {
    "num_ctx": int,
    "num_batch": int,
    "num_gpu": int,
    "main_gpu": int,
    "num_thread": int,
    "draft_num_predict": int,
    "use_mmap": bool,
}
_OPEN_ENDED = 10  # windows that a reply without a limit may fill, as in Ollama


def resolve_options(num_ctx: int, *layers: Mapping[str, Any] | None) -> dict[str, Any]:
    """The sampling options after all layers, later ones over earlier ones; unknown names and nulls are skipped.

    Load-time options are checked, but the models stay as they were loaded. `ApiError` for a wrong type, and for
    a context longer than `num_ctx` tokens, which can't be honoured.
    """
    options = dict(DEFAULTS)
    for layer in layers:
        for name, value in (layer or {}).items():
            if value is not None:
                _set(options, name, value, num_ctx)
    return options


def _set(options: dict[str, Any], name: str, value: Any, num_ctx: int) -> None:
    if name in DEFAULTS:
        options[name] = _typed(name, value, _TYPES[name])
    elif name in _LOAD_TIME:
        checked = _typed(name, value, _LOAD_TIME[name])
        if name == "num_ctx" and checked > num_ctx:
            raise ApiError(400, f"num_ctx {checked} is more than the {num_ctx} this server was started with")


def _typed(name: str, value: Any, kind: Any) -> Any:
    number = isinstance(value, int | float) and not isinstance(value, bool)
    if kind is int and number:
        return int(value)
    if kind is float and number:
        return float(value)
    if kind is bool and isinstance(value, bool):
        return value
    if kind == list[str] and isinstance(value, list):
        if not all(isinstance(item, str) for item in value):
            raise ApiError(500, f'option "{name}" must be of an array of strings')
        return value
    # 500, as Ollama answers: it finds out while it prepares the runner
    expected = {int: "integer", float: "float32", bool: "boolean", list[str]: "array"}[kind]
    raise ApiError(500, f'option "{name}" must be of type {expected}')


def engine_body(options: Mapping[str, Any], num_ctx: int) -> dict[str, Any]:
    """What llama-server is told: every option by value, since the GGUF may change its defaults."""
    body = {name: value for name, value in options.items() if name not in ("num_predict", "num_keep")}
    body["n_predict"] = _bounded(options["num_predict"], num_ctx)
    if options["num_keep"]:  # Ollama leaves 0 out, and the engine was started with Ollama's 4
        body["n_keep"] = options["num_keep"]
    return {**body, "cache_prompt": True, "stream": True}


def _bounded(num_predict: int, num_ctx: int) -> int:
    limit = _OPEN_ENDED * num_ctx
    return limit if num_predict < 0 else min(num_predict, limit)
