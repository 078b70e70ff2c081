"""OpenAI's requests as Ollama's, and Ollama's replies as OpenAI's: pure, as Ollama's own /v1 translates them."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from time import time
from typing import Any

from specollama.pairs.ollama_request import EXTENSION_KEY

Json = dict[str, Any]

_IMAGE = re.compile(r"data:image/(?:jpeg|jpg|png|webp);base64,(.*)", re.DOTALL)
_SAMPLING = ("temperature", "top_p", "seed", "frequency_penalty", "presence_penalty")
_FINGERPRINT = "fp_ollama"


class Untranslatable(Exception):
    """The request has what only the target's own server may know how to take."""


def chat_body(asked: Mapping[str, Any], pair_options: Mapping[str, Any]) -> Json:
    """The body for /api/chat. Raises Untranslatable."""
    messages = asked.get("messages")
    if not isinstance(messages, list) or not messages or asked.get("_debug_render_only"):
        raise Untranslatable
    body: Json = {
        "model": asked.get("model"),
        "messages": [each for message in messages for each in _messages(message)],
        "stream": asked.get("stream") is True,
        "options": _options(asked, pair_options),
    }
    optional = {
        "tools": asked.get("tools"),
        "format": _format(asked.get("response_format")),
        "think": _think(asked),
        "logprobs": asked.get("logprobs"),
        "top_logprobs": asked.get("top_logprobs"),
    }
    return body | {name: value for name, value in optional.items() if value is not None}


def completion_body(asked: Mapping[str, Any], pair_options: Mapping[str, Any]) -> Json:
    """The body for /api/generate. Raises Untranslatable."""
    prompt = asked.get("prompt")
    if isinstance(prompt, list) and len(prompt) == 1:
        prompt = prompt[0]
    if not isinstance(prompt, str) or asked.get("_debug_render_only"):
        raise Untranslatable
    body: Json = {
        "model": asked.get("model"),
        "prompt": prompt,
        "stream": asked.get("stream") is True,
        "options": _options(asked, pair_options),
    }
    if isinstance(asked.get("suffix"), str) and asked["suffix"]:
        body["suffix"] = asked["suffix"]
    if isinstance(rows := asked.get("logprobs"), int) and not isinstance(rows, bool):
        body |= {"logprobs": True, "top_logprobs": rows}
    return body


def _options(asked: Mapping[str, Any], pair_options: Mapping[str, Any]) -> Json:
    """Where the request sets neither, temperature and top_p are 1 on this API, unless the pair has its own."""
    options: Json = {name: 1.0 for name in ("temperature", "top_p") if name not in pair_options}
    options |= {name: asked[name] for name in _SAMPLING if asked.get(name) is not None}
    limit = asked.get("max_completion_tokens", asked.get("max_tokens"))
    if limit is not None:
        options["num_predict"] = limit
    if (stop := asked.get("stop")) is not None:
        options["stop"] = [stop] if isinstance(stop, str) else stop
    given = asked.get("options")
    if isinstance(given, Mapping) and EXTENSION_KEY in given:
        options[EXTENSION_KEY] = given[EXTENSION_KEY]
    return options


def _messages(message: Any) -> Iterator[Json]:
    """A message of several parts becomes several, as Ollama has it."""
    if not isinstance(message, Mapping):
        raise Untranslatable
    content, role = message.get("content"), message.get("role")
    if isinstance(content, list):
        for part in content:
            yield {"role": role, **_part(part)}
        return
    if content is not None and not isinstance(content, str):
        raise Untranslatable
    said: Json = {"role": role, "content": content or ""}
    if isinstance(reasoning := message.get("reasoning"), str) and reasoning:
        said["thinking"] = reasoning
    if calls := message.get("tool_calls"):
        said["tool_calls"] = _native_calls(calls)
    for ours, theirs in (("tool_call_id", "tool_call_id"), ("tool_name", "name")):
        if message.get(theirs):
            said[ours] = message[theirs]
    yield said


def _part(part: Any) -> Json:
    if isinstance(part, Mapping) and part.get("type") == "text" and isinstance(part.get("text"), str):
        return {"content": part["text"]}
    url = part.get("image_url") if isinstance(part, Mapping) else None
    if isinstance(url, Mapping):
        url = url.get("url")
    if isinstance(url, str) and (image := _IMAGE.fullmatch(url)):
        return {"content": "", "images": [image[1]]}
    raise Untranslatable


def _native_calls(calls: Any) -> list[Json]:
    if not isinstance(calls, list):
        raise Untranslatable
    return [_native_call(call) for call in calls]


def _native_call(call: Any) -> Json:
    try:
        function = call["function"]
        arguments = json.loads(function.get("arguments") or "{}")
        return {"id": call.get("id") or "", "function": {"name": function["name"], "arguments": arguments}}
    except (KeyError, TypeError, AttributeError, ValueError):
        raise Untranslatable from None


def _format(wanted: Any) -> Any:
    if wanted is None or not isinstance(wanted, Mapping) or wanted.get("type") == "text":
        return None
    if wanted.get("type") == "json_object":
        return "json"
    schema = wanted.get("json_schema")
    if wanted.get("type") == "json_schema" and isinstance(schema, Mapping) and "schema" in schema:
        return schema["schema"]
    raise Untranslatable


def _think(asked: Mapping[str, Any]) -> bool | str | None:
    reasoning = asked.get("reasoning")
    effort = reasoning.get("effort") if isinstance(reasoning, Mapping) else asked.get("reasoning_effort")
    return False if effort == "none" else effort


@dataclass(slots=True)
class OpenAIResponseBuilder:
    """Writes one reply. `include_usage`: a stream ends with the counts."""

    model: str
    number: str
    chat: bool
    include_usage: bool = False
    _called: bool = False
    _begun: bool = False
    _written: int = 0  # characters, for the offsets of a completion's log-probabilities
    _created: int = field(default_factory=lambda: int(time()))

    def whole(self, reply: Mapping[str, Any]) -> Json:
        """The answer of a request that doesn't stream."""
        choice: Json = {"index": 0, **self._said(reply, "message"), "finish_reason": self._finish(reply)}
        return self._framed("chat.completion" if self.chat else "text_completion", [choice]) | {
            "usage": _usage(reply),
            **_own(reply),
        }

    def pieces(self, chunk: Mapping[str, Any]) -> Iterator[Json]:
        """The events for one of Ollama's chunks."""
        kind = "chat.completion.chunk" if self.chat else "text_completion"
        if not chunk.get("done") or self._says_something(chunk):
            yield self._framed(kind, [{"index": 0, **self._said(chunk, "delta"), "finish_reason": None}])
        if not chunk.get("done"):
            return
        empty: Json = {"delta": {}} if self.chat else {"text": ""}
        yield self._framed(kind, [{"index": 0, **empty, "finish_reason": self._finish(chunk)}]) | _own(chunk)
        if self.include_usage:
            yield self._framed(kind, []) | {"usage": _usage(chunk)}

    def _framed(self, kind: str, choices: list[Json]) -> Json:
        counted = kind == "text_completion" and self.include_usage
        return {
            "id": f"{'chatcmpl' if self.chat else 'cmpl'}-{self.number}",
            "object": kind,
            "created": self._created,
            "model": self.model,
            "system_fingerprint": _FINGERPRINT,
            "choices": choices,
            **({"usage": _usage({})} if counted else {}),  # in every event of a completion, as Ollama has it
        }

    def _said(self, chunk: Mapping[str, Any], key: str) -> Json:
        entries = chunk.get("logprobs")
        if not self.chat:
            text = chunk.get("response", "")
            logprobs = {"logprobs": _completion_logprobs(entries, self._written)} if entries else {}
            self._written += len(text)
            return {"text": text, **logprobs}
        message = chunk.get("message") or {}
        role: Json = {} if self._begun else {"role": "assistant"}
        said: Json = {**role, "content": message.get("content", "")}
        self._begun = True
        if message.get("thinking"):
            said["reasoning"] = message["thinking"]
        if calls := message.get("tool_calls"):
            self._called = True
            said["tool_calls"] = [_openai_call(call, index) for index, call in enumerate(calls)]
        return {key: said, **({"logprobs": {"content": list(entries)}} if entries else {})}

    def _says_something(self, chunk: Mapping[str, Any]) -> bool:
        message = chunk.get("message") or {}
        return bool(chunk.get("response") or message.get("content") or message.get("tool_calls"))

    def _finish(self, chunk: Mapping[str, Any]) -> str:
        return "tool_calls" if self._called else str(chunk.get("done_reason") or "stop")


def _usage(reply: Mapping[str, Any]) -> Json:
    prompt, completion = reply.get("prompt_eval_count") or 0, reply.get("eval_count") or 0
    return {"prompt_tokens": prompt, "completion_tokens": completion, "total_tokens": prompt + completion}


def _own(reply: Mapping[str, Any]) -> Json:
    return {EXTENSION_KEY: reply[EXTENSION_KEY]} if EXTENSION_KEY in reply else {}


def _openai_call(call: Mapping[str, Any], index: int) -> Json:
    function = call.get("function") or {}
    arguments = json.dumps(function.get("arguments") or {}, ensure_ascii=False, separators=(",", ":"))
    return {
        "id": call.get("id") or f"call_{index}",
        "index": function.get("index", index),
        "type": "function",
        "function": {"name": function.get("name"), "arguments": arguments},
    }


def _completion_logprobs(entries: list[Mapping[str, Any]], offset: int) -> Json:
    offsets = []
    for entry in entries:
        offsets.append(offset)
        offset += len(entry.get("token", ""))
    return {
        "tokens": [entry.get("token") for entry in entries],
        "token_logprobs": [entry.get("logprob") for entry in entries],
        "top_logprobs": [
            {each["token"]: each["logprob"] for each in entry.get("top_logprobs") or []} for entry in entries
        ],
        "text_offset": offsets,
    }
