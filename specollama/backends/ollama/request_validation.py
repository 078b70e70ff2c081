"""Reading requests: a JSON body into wire types, with Ollama's refusals."""

from __future__ import annotations

import re
from typing import Any, TypeVar

from pydantic import ValidationError
from pydantic_core import from_json

from specollama.backends.ollama.request_json import read_object
from specollama.backends.ollama.schema import TOP_LOGPROBS_LIMIT, ChatRequest, GenerateRequest, Wire
from specollama.errors import ApiError

Asked = TypeVar("Asked", bound=Wire)

_KINDS = {str: "string", bool: "bool", int: "number", float: "number", list: "array", dict: "object"}
_DURATION = re.compile(r"([-+]?)((?:\d+(?:\.\d*)?|\.\d+)(?:ns|us|µs|μs|ms|s|m|h))+|[-+]?0")


def parse_body(raw: bytes, kind: type[Asked]) -> Asked:
    """The body as `kind`; types are strict and null stands for an absent key, as in Go. `ApiError` 400 else."""
    if not raw:
        raise ApiError(400, "missing request body")
    body, _ = read_object(raw)
    if body is not None:
        return validate_body(body, kind)
    try:
        return validate_body(from_json(raw, allow_inf_nan=False), kind)  # another value than an object
    except ValueError as error:
        raise ApiError(400, f"invalid JSON: {error}") from error


def validate_body(body: Any, kind: type[Asked]) -> Asked:
    """The same for a body that was read already."""
    if not isinstance(body, dict):
        raise ApiError(400, _mismatch(body, kind.__name__, "object"))
    try:
        return kind.model_validate(_without_nulls(body), strict=True)
    except ValidationError as error:
        raise ApiError(400, _first(error, kind)) from error


def check_limits(ask: GenerateRequest | ChatRequest) -> None:
    """What both endpoints refuse before they look at the model."""
    if not 0 <= ask.top_logprobs <= TOP_LOGPROBS_LIMIT:
        raise ApiError(400, f"top_logprobs must be between 0 and {TOP_LOGPROBS_LIMIT}")
    if isinstance(ask.keep_alive, str) and not _DURATION.fullmatch(ask.keep_alive):
        missing_unit = re.fullmatch(r"[-+]?[\d.]+", ask.keep_alive)
        problem = "missing unit in duration" if missing_unit else "invalid duration"
        raise ApiError(400, f'time: {problem} "{ask.keep_alive}"')


def asks_to_unload(ask: GenerateRequest | ChatRequest) -> bool:
    return is_no_time(ask.keep_alive)


def is_no_time(keep_alive: Any) -> bool:
    """Whether a `keep_alive` is a duration of nothing."""
    if isinstance(keep_alive, str):
        return _DURATION.fullmatch(keep_alive) is not None and not re.search(r"[1-9]", keep_alive)
    return isinstance(keep_alive, int | float) and not isinstance(keep_alive, bool) and keep_alive == 0


def asks_to_truncate(ask: GenerateRequest | ChatRequest) -> bool:
    return ask.truncate is not False


def requested_logprobs(ask: GenerateRequest | ChatRequest) -> int | None:
    """How many entries a row is to have; None: no log-probabilities at all."""
    return ask.top_logprobs if ask.logprobs else None


def _without_nulls(value: Any) -> Any:
    """Drop null members of the body and of the objects in its lists, where Go leaves the zero value."""
    return {
        key: [_without_nulls(item) if isinstance(item, dict) else item for item in member]
        if isinstance(member, list)
        else member
        for key, member in value.items()
        if member is not None
    }


def _first(error: ValidationError, kind: type[Wire]) -> str:
    detail = error.errors(include_url=False)[0]
    place = ".".join(str(part) for part in (kind.__name__, *detail["loc"]))
    if detail["type"] == "missing":
        return f"{place} is missing"
    return _mismatch(detail["input"], place, str(detail["type"]).removesuffix("_type"))


def _mismatch(value: Any, place: str, expected: str) -> str:
    found = _KINDS.get(type(value), "null")
    return f"json: cannot unmarshal {found} into Go struct field {place} of type {expected}"
