"""Parses a request's JSON body: the input, the speculation settings, and the body to pass on.

What isn't understood for certain is no fault here: the target's own server judges it, and answers or refuses it in
its own words.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from pydantic import ValidationError

from specollama.backends.ollama import request_validation
from specollama.backends.ollama.schema import LOAD_OPTIONS, SAMPLING_OPTIONS, ChatRequest, GenerateRequest
from specollama.config.schema import OptionsTable
from specollama.config.settings import Overrides
from specollama.errors import ApiError
from specollama.pairs.feasibility import merged_options
from specollama.pairs.request import ChatInput, CompletionInput, ReplyInput
from specollama.spec_decode.types import Route

EXTENSION_KEY = "specollama"
"""The key of `options` under which a request says how it is to be speculated."""

_CONTROLS = frozenset({"route", "lookahead", "off"})
_KNOWN_OPTIONS = SAMPLING_OPTIONS | LOAD_OPTIONS


@dataclass(frozen=True, slots=True)
class ParsedRequest:
    """A parsed body. `obstacle`: why only the target's own server can answer; `input` is None only then."""

    input: ReplyInput | None
    overrides: Overrides = field(default_factory=Overrides)
    obstacle: str | None = None


def parse_request(body: Mapping[str, Any], *, chat: bool) -> ParsedRequest:
    """Raises ApiError 400 when `options.specollama` isn't what it may be: nobody else would tell."""
    overrides, off = _controls(body)
    try:
        read = _read(body, chat=chat)
    except ApiError as fault:
        return ParsedRequest(None, obstacle=f"the target's server is left to judge it: {fault.text}")
    obstacle = off or _obstacle(body, read)
    if obstacle is not None:
        return ParsedRequest(None, overrides, obstacle)
    if read.keep_alive is not None:
        overrides = {**overrides, "keep_alive": read.keep_alive}
    return ParsedRequest(_ask(read), overrides)


def upstream_body(body: Mapping[str, Any], model: str, options: Mapping[str, Any], keep_alive: Any) -> dict[str, Any]:
    """The body as the target's own server gets it: its model, and the pair's settings where the request has none."""
    passed = {name: value for name, value in body.items() if name not in ("model", "options")}
    given = body.get("options")
    merged = merged_options(options, given if isinstance(given, Mapping) else {})
    merged.pop(EXTENSION_KEY, None)
    if given is not None and not isinstance(given, Mapping):
        passed["options"] = given  # wrong, and the server says so
    elif merged or given is not None:
        passed["options"] = merged
    if keep_alive is not None and body.get("keep_alive") is None:
        passed["keep_alive"] = keep_alive
    return {"model": model, **passed}


def _read(body: Mapping[str, Any], *, chat: bool) -> ChatRequest | GenerateRequest:
    read: ChatRequest | GenerateRequest = (
        request_validation.validate_body(dict(body), ChatRequest)
        if chat
        else request_validation.validate_body(dict(body), GenerateRequest)
    )
    request_validation.check_limits(read)
    return read


def _controls(body: Mapping[str, Any]) -> tuple[Overrides, str | None]:
    """What `options.specollama` says: settings, and why not to speculate at all."""
    options = body.get("options")
    own = options.get(EXTENSION_KEY) if isinstance(options, Mapping) else None
    if own is None:
        return Overrides(), None
    if not isinstance(own, Mapping) or not set(own) <= _CONTROLS:
        raise ApiError(400, f"options.{EXTENSION_KEY} must be an object with any of {', '.join(sorted(_CONTROLS))}")
    if not isinstance(own.get("off", False), bool):
        raise ApiError(400, f"options.{EXTENSION_KEY}.off must be true or false")
    overrides = Overrides(route=_route(own.get("route")), lookahead=_lookahead(own.get("lookahead")))
    return overrides, "switched off by the request" if own.get("off") else None


def _route(given: Any) -> Route | None:
    if given is None or (isinstance(given, str) and given in list(Route)):
        return None if given is None else Route(given)
    raise ApiError(400, f"options.{EXTENSION_KEY}.route must be one of {', '.join(Route)}")


def _lookahead(given: Any) -> int | str | None:
    whole = isinstance(given, int) and not isinstance(given, bool) and given >= 0
    if given is None or given == "auto" or whole:
        return given  # type: ignore[no-any-return]
    raise ApiError(400, f'options.{EXTENSION_KEY}.lookahead must be "auto" or a whole number, 0 or more')


def _obstacle(body: Mapping[str, Any], read: ChatRequest | GenerateRequest) -> str | None:
    """The part of a valid request that only the target's own server can answer."""
    if isinstance(read, ChatRequest):
        if not any(message.role == "user" for message in read.messages):
            return "no user turn"
    elif not read.prompt:
        return "no prompt"
    elif read.raw and (read.suffix or read.system or read.template or read.context):
        return "raw beside what needs a template"
    if read.debug_render_only:
        return "_debug_render_only"
    if read.logprobs:
        return "logprobs"
    if read.shift is not None:
        return "shift"
    kind = type(read)
    known = {info.alias or name for name, info in kind.model_fields.items()}
    if unknown := [name for name, value in body.items() if name not in known and value is not None]:
        return f"the field {unknown[0]!r:.60} isn't known"
    return _option_obstacle(read.options or {})


def _option_obstacle(options: Mapping[str, Any]) -> str | None:
    set_ = {name: value for name, value in options.items() if value is not None and name != EXTENSION_KEY}
    if unknown := [name for name in set_ if name not in _KNOWN_OPTIONS]:
        return f"the option {unknown[0]!r:.60} isn't known"
    try:
        OptionsTable.model_validate(set_)
    except ValidationError as error:
        return f"the option {error.errors()[0]['loc'][0]!r} isn't of its type"
    return None


def _ask(read: ChatRequest | GenerateRequest) -> ReplyInput:
    options = {
        name: value for name, value in (read.options or {}).items() if name != EXTENSION_KEY and value is not None
    }
    if isinstance(read, ChatRequest):
        return ChatInput(read.messages, options, read.format, read.tools or (), read.think)
    return CompletionInput(
        prompt=read.prompt,
        options=options,
        format=read.format,
        think=read.think,
        suffix=read.suffix,
        system=read.system,
        template=read.template,
        context=read.context or (),
        raw=read.raw,
        images=read.images or (),
    )
