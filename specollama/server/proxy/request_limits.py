"""What a request may ask for, where the configuration sets a bound: whatever makes a model read or write."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from specollama.config.schema import ServeTable
from specollama.errors import ApiError

BOUND = ("/api/generate", "/api/chat", "/api/embed", "/v1/")
"""The beginnings of the paths that have a model read or write."""

_READ = ("prompt", "system", "suffix", "template", "messages", "input", "instructions", "tools", "context")
_NO_TEXT = frozenset({"role", "type", "id", "images", "image_url", "source", "input_audio", "file"})
_OPENAI_LIMITS = ("max_tokens", "max_completion_tokens", "max_output_tokens")
_OPENAI_LIMIT = {
    "/v1/chat/completions": "max_tokens",
    "/v1/completions": "max_tokens",
    "/v1/messages": "max_tokens",
    "/v1/responses": "max_output_tokens",
}
_WRITING = ("/api/generate", "/api/chat")


def limit_body(path: str, body: dict[str, Any], serve: ServeTable, pair_options: Mapping[str, Any]) -> dict[str, Any]:
    """The body, its reply no longer than allowed. Raises ApiError 400 when it asks for more by itself.

    `pair_options`: those of the pair that answers, which hold where the request has none. The same object comes back
    where the configuration sets no bound.
    """
    most = serve.max_num_predict
    if not path.startswith(BOUND) or (most is None and serve.max_prompt is None):
        return body
    if serve.max_prompt is not None and (length := _prompt_length(body)) > serve.max_prompt:
        raise ApiError(400, f"the prompt has {length} characters: this server takes {serve.max_prompt}")
    if most is None:
        return {**body}  # written anew: what was measured is what goes on, not the client's own bytes
    if path in _WRITING:
        return {**body, "options": _limit_options(body.get("options"), pair_options, most)}
    return _limit_openai(path, body, most)


def _limit_options(options: Any, pair_options: Mapping[str, Any], most: int) -> Any:
    if options is not None and not isinstance(options, Mapping):
        return options  # wrong, and the model's server says so
    asked = (options or {}).get("num_predict")
    _refuse_more("num_predict", asked, most)
    limit = pair_options.get("num_predict") if asked is None else asked
    beyond = limit is None or (isinstance(limit, int | float) and not 0 < limit <= most)
    return {**(options or {}), "num_predict": most} if beyond else options


def _limit_openai(path: str, body: dict[str, Any], most: int) -> dict[str, Any]:
    asked = {name: body[name] for name in _OPENAI_LIMITS if body.get(name) is not None}
    for name, value in asked.items():
        _refuse_more(name, value, most)
    positive = {name: value for name, value in asked.items() if not (isinstance(value, int | float) and value <= 0)}
    default = {_OPENAI_LIMIT[path]: most} if path in _OPENAI_LIMIT and not positive else {}
    return {**{name: value for name, value in body.items() if name not in asked}, **positive, **default}


def _refuse_more(name: str, asked: Any, most: int) -> None:
    if isinstance(asked, int | float) and asked > most:
        raise ApiError(400, f"{name} is {asked}: this server gives {most} tokens at most")


def _prompt_length(body: Mapping[str, Any]) -> int:
    """Characters of all that the model is to read; a token counts as one."""
    return sum(_length(body.get(name)) for name in _READ)


def _length(value: Any) -> int:
    if isinstance(value, str):
        return len(value)
    if isinstance(value, list):
        return sum(map(_length, value))
    if isinstance(value, Mapping):
        return sum(_length(item) for key, item in value.items() if key not in _NO_TEXT)
    return isinstance(value, int) and not isinstance(value, bool)
