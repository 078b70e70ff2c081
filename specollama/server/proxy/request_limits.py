"""What a request may ask for, where the configuration sets a bound."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from specollama.config.schema import ServeTable
from specollama.errors import ApiError


def limit_body(body: Mapping[str, Any], serve: ServeTable, pair_options: Mapping[str, Any]) -> dict[str, Any]:
    """The body, its reply no longer than allowed. Raises ApiError 400 when it asks for more by itself.

    `pair_options`: those of the pair that answers, which hold where the request has none.
    """
    limited = dict(body)
    if serve.max_prompt is not None and (length := _length(body)) > serve.max_prompt:
        raise ApiError(400, f"the prompt has {length} characters: this server takes {serve.max_prompt}")
    if serve.max_num_predict is not None:
        limited["options"] = _limited(body.get("options"), pair_options, serve.max_num_predict)
    return limited


def _limited(options: Any, pair_options: Mapping[str, Any], most: int) -> Any:
    if options is not None and not isinstance(options, Mapping):
        return options  # wrong, and the model's server says so
    asked = (options or {}).get("num_predict")
    if isinstance(asked, int | float) and asked > most:
        raise ApiError(400, f"num_predict is {asked}: this server gives {most} tokens at most")
    limit = pair_options.get("num_predict") if asked is None else asked
    beyond = limit is None or (isinstance(limit, int | float) and not 0 < limit <= most)
    return {**(options or {}), "num_predict": most} if beyond else options


def _length(body: Mapping[str, Any]) -> int:
    """Characters of all that the model is to read."""
    messages = body.get("messages")
    turns = messages if isinstance(messages, list) else []
    contents = [turn.get("content") for turn in turns if isinstance(turn, Mapping)]
    texts = [body.get(name) for name in ("prompt", "system", "suffix", "template")]
    return sum(len(text) for text in (*texts, *contents) if isinstance(text, str))
