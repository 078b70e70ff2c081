"""Renders a request as a prompt, by the target's server or by the chat template of the target's file."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from specollama.backends.llama_cpp.chat_template import render_chat
from specollama.backends.llama_cpp.tokenizer import LlamaTokenizer
from specollama.backends.ollama.model_info import ModelInfo
from specollama.backends.ollama.schema import Message
from specollama.errors import Refused, RunError
from specollama.pairs.request import ChatInput, CompletionInput, ReplyInput

if TYPE_CHECKING:
    from specollama.pairs.routes.local_models import LocalModels


@dataclass(frozen=True, slots=True)
class NoPrompt:
    """The reason that no prompt can be rendered."""

    reason: str


async def render_on_server(
    ask: ReplyInput, body: Mapping[str, Any], target: ModelInfo, vocabulary: LlamaTokenizer | None
) -> str | NoPrompt:
    """The prompt that the target is given, without the begin marker that is added to it. `body`: of the request."""
    try:
        prompt = ask.prompt if isinstance(ask, CompletionInput) and ask.raw else await target.server.render(dict(body))
    except Refused as error:
        return NoPrompt(str(error))  # the request itself may not be refused
    if prompt is None:
        return NoPrompt("the target's server doesn't tell what prompt it makes of a chat")
    stripped = strip_bos(prompt, vocabulary)
    if ask.raw and stripped != prompt:
        return NoPrompt("the raw prompt has a begin marker of its own, beside the server's")
    return stripped


def strip_bos(prompt: str, vocabulary: LlamaTokenizer | None) -> str:
    """The server adds the begin marker itself: one in the text would be a second one."""
    if vocabulary is None or not vocabulary.adds_begin_marker or not vocabulary.bos_text:
        return prompt
    return prompt.removeprefix(vocabulary.bos_text)


def render_from_file(pair: LocalModels, ask: ReplyInput) -> str:
    """The request as a prompt by the file's own template. Raises RunError where it has none, or that refuses."""
    vocabulary, model = pair.target.vocabulary, pair.target.model
    if isinstance(ask, CompletionInput) and ask.raw:
        return ask.prompt
    messages = [message.body() for message in messages_of(ask)]
    if not model.chat_template:
        raise RunError(f"{model.path}: the file has no chat template, and no server renders the chat")
    prompt = render_chat(model.chat_template, messages, begin=vocabulary.bos_text, end=vocabulary.eos_text)
    return strip_bos(prompt, vocabulary)


def messages_of(ask: ReplyInput) -> list[Message]:
    """The messages of a request; a completion is a chat of one."""
    if isinstance(ask, ChatInput):
        return list(ask.messages)
    before = [Message(role="system", content=ask.system)] if ask.system else []
    return [*before, Message(role="user", content=ask.prompt)]
