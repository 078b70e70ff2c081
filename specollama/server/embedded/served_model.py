"""A model that is served: its card and its engine, and the prompts made for it."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Any

from specollama.backends.ollama.schema import Message
from specollama.errors import ApiError
from specollama.server.embedded.llama_server_process import LlamaServerProcess
from specollama.server.embedded.model_card import ModelCard

_TOO_LONG = (
    "the prompt is longer than the context length currently available to the model; shorten the prompt, "
    "or use a server with a longer context"
)


@dataclass(frozen=True, slots=True)
class ServedModel:
    card: ModelCard
    engine: LlamaServerProcess

    async def render(self, body: dict[str, Any]) -> str:
        """The chat of an engine's `body` as the model's own template writes it."""
        return str((await self.engine.post("/apply-template", body))["prompt"])

    async def fit_prompt(self, text: str, num_keep: int, *, shift: bool) -> str | list[int]:
        """`text`, or its tokens with the middle cut out when it fills the context; `ApiError` without `shift`.

        A prompt of fewer bytes than the context has tokens is not even counted.
        """
        window = self.engine.num_ctx
        if len(text.encode()) < window:
            return text
        tokens = await self.engine.tokenize(text, add_special=True)
        if len(tokens) < window:
            return text
        if not shift:
            raise ApiError(400, _TOO_LONG)
        keep = len(tokens) if num_keep < 0 else num_keep
        return cut_middle(tokens, keep + self.card.adds_bos, window)

    async def fit_chat(self, messages: list[Message], body: dict[str, Any]) -> list[Message]:
        """The last messages that fit the context, and the system messages before them; at least the last one."""
        for start in range(len(messages) - 1):
            kept = _from(messages, start)
            text = await self.render({**body, "messages": engine_messages(kept)})
            if len(await self.engine.tokenize(text)) <= self.engine.num_ctx:
                return kept
        return _from(messages, len(messages) - 1)


def _from(messages: list[Message], start: int) -> list[Message]:
    return [each for each in messages[:start] if each.role == "system"] + messages[start:]


def cut_middle(tokens: list[int], keep: int, window: int) -> list[int]:
    """The first `keep` tokens and a tail, which leave half of the rest of the window free."""
    keep = min(keep, window - 1)
    total = window - max((window - keep) // 2, 1)
    return tokens[:keep] + tokens[len(tokens) - (total - keep) :]


def engine_messages(messages: list[Message]) -> list[dict[str, Any]]:
    """Chat messages in llama-server's (OpenAI's) form."""
    return [_engine_message(message) for message in messages]


def _engine_message(message: Message) -> dict[str, Any]:
    body: dict[str, Any] = {"role": message.role, "content": message.content}
    if message.tool_calls:
        body["tool_calls"] = [_engine_call(place, call) for place, call in enumerate(message.tool_calls)]
    if message.tool_name:
        body["name"] = message.tool_name
    if message.tool_call_id:
        body["tool_call_id"] = message.tool_call_id
    return body


def _engine_call(place: int, call: dict[str, Any]) -> dict[str, Any]:
    function = call.get("function") or {}
    return {
        "id": call.get("id", ""),
        "index": function.get("index", place),
        "type": "function",
        "function": {
            "name": function.get("name", ""),
            "arguments": json.dumps(function.get("arguments") or {}, ensure_ascii=False),
        },
    }
