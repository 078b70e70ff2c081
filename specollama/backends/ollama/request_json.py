r"""Reads a request's JSON as Ollama's decoder (Go's encoding/json) does.

Ollama takes the first value and ignores what follows, writes U+FFFD for bytes that aren't UTF-8 and for half a
surrogate pair (`"\ud83c"`), and matches keys without case. Whoever reads more strictly answers otherwise than Ollama,
and whoever forwards what it can't read lets it past its own limits.
"""

from __future__ import annotations

import json
import math
import re
from typing import Any

from pydantic_core import from_json

from specollama.backends.ollama.schema import ChatRequest, GenerateRequest, Message, ShowRequest, Wire
from specollama.errors import ApiError


def _fields(*kinds: type[Wire]) -> frozenset[str]:
    """The keys of these objects."""
    return frozenset(info.alias or name for kind in kinds for name, info in kind.model_fields.items())


_MANAGING = frozenset(("name", "source", "destination", "from", "input"))
_OPENAI = frozenset(
    (
        *("max_tokens", "max_completion_tokens", "max_output_tokens", "temperature", "top_p", "seed", "stop"),
        *("frequency_penalty", "presence_penalty", "response_format", "stream_options", "reasoning"),
        *("reasoning_effort", "instructions"),
    )
)
KEYS = _fields(GenerateRequest, ChatRequest, ShowRequest) | _MANAGING | _OPENAI
"""Of a body. Those inside of `options` are matched with case, by Ollama as well."""

_MESSAGE_KEYS = _fields(Message) | {"name", "reasoning"}
_HUGE = re.compile(rb"[0-9.][eE]\+?0*[1-9][0-9]{2}|[0-9]{300}")  # what may be beyond the floats
_HALF = re.compile("[\ud800-\udfff]")
_MOST_DIGITS = 400  # of a whole number: more than the floats reach, and less than Python refuses to read


def read_object(raw: bytes) -> tuple[dict[str, Any] | None, bytes]:
    """The object that a body is to Ollama, None where it is none, and the body to pass on: `raw` where both agree.

    Raises ApiError 400 for numbers beyond the floats where Ollama reads them, and for values nested too deeply to be
    read here.
    """
    found, exact = _parsed(raw)
    if not isinstance(found, dict):
        return None, raw
    body = _with_known_keys(found)
    if _HUGE.search(raw) and any(_has_infinity(value) for key, value in body.items() if key in KEYS):
        raise ApiError(400, "json: cannot unmarshal number into Go value of type float64: it is out of range")
    if exact and body is found:
        return body, raw
    body = {key: value for key, value in body.items() if key in KEYS or not _has_infinity(value)}
    return body, json.dumps(body, ensure_ascii=False, separators=(",", ":")).encode()


def _parsed(raw: bytes) -> tuple[Any, bool]:
    """The value, and whether the body is strict JSON; None for what Ollama can't read either."""
    try:
        return from_json(raw, allow_inf_nan=False), True
    except ValueError:
        pass
    try:
        value, _ = _DECODER.raw_decode(raw.decode("utf-8", "replace").lstrip(" \t\r\n"))
        return _whole_characters(value), False
    except ValueError:
        return None, False
    except RecursionError:
        raise ApiError(400, "the request's JSON is nested too deeply") from None


def _number(text: str) -> int | float:
    return int(text) if len(text) <= _MOST_DIGITS else float("-inf" if text.startswith("-") else "inf")


def _no_constant(name: str) -> None:
    raise ValueError(f"{name} isn't JSON")


_DECODER = json.JSONDecoder(parse_int=_number, parse_constant=_no_constant)


def _whole_characters(value: Any) -> Any:
    if isinstance(value, str):
        return _HALF.sub("\ufffd", value)
    if isinstance(value, list):
        return [_whole_characters(item) for item in value]
    if isinstance(value, dict):
        return {_whole_characters(key): _whole_characters(item) for key, item in value.items()}
    return value


def _has_infinity(value: Any) -> bool:
    if isinstance(value, list | dict):
        return any(map(_has_infinity, value.values() if isinstance(value, dict) else value))
    return isinstance(value, float) and math.isinf(value)


def _with_known_keys(body: dict[str, Any]) -> dict[str, Any]:
    """The same object where each key is spelled as known."""
    body = _spelled(body, KEYS)
    messages = body.get("messages")
    if not isinstance(messages, list):
        return body
    spelled = [_spelled(each, _MESSAGE_KEYS) if isinstance(each, dict) else each for each in messages]
    if all(new is old for new, old in zip(spelled, messages, strict=True)):
        return body
    return {**body, "messages": spelled}


def _spelled(found: dict[str, Any], known: frozenset[str]) -> dict[str, Any]:
    """Keys that differ from a known one in case are that one; of several the last one counts, as in Go."""
    if all(key in known or key.casefold() not in known for key in found):
        return found
    spelled: dict[str, Any] = {}
    for key, value in found.items():
        spelled[key.casefold() if key.casefold() in known else key] = value
    return spelled
