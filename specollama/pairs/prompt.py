"""Renders a request as a prompt, by the target's server or by the chat template of the target's file."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from specollama.backends.llama_cpp.chat_template import render_chat
from specollama.backends.llama_cpp.tokenizer import LlamaTokenizer
from specollama.backends.ollama.model_info import ModelInfo, forwarded_options
from specollama.backends.ollama.request_bodies import RequestTemplate
from specollama.backends.ollama.schema import Message
from specollama.errors import Refused, RunError
from specollama.pairs.feasibility import ReplyContext
from specollama.pairs.request import ChatInput, CompletionInput, ReplyInput
from specollama.spec_decode.types import SamplingOptions

if TYPE_CHECKING:
    from specollama.pairs.routes.local_models import LocalModels


@dataclass(frozen=True, slots=True)
class NoPrompt:
    """The reason that no prompt can be rendered."""

    reason: str


async def render_on_server(
    context: ReplyContext, target: ModelInfo, vocabulary: LlamaTokenizer | None, *, in_process: bool = False
) -> str | NoPrompt:
    """The prompt that the target gets, without the BOS token that is added to it.

    `in_process`: the target runs in process, and its server only renders the prompt, so that it may unload the model.
    """
    request = context.request
    body = context.body(forwarded_options(context.options)) | {"truncate": False}
    keep = RequestTemplate(target.name, SamplingOptions(), keep_alive=context.settings.keep_alive)
    if keep.unloads and not in_process:
        body.pop("keep_alive")  # rendering would unload the model
    try:
        given = request.prompt if isinstance(request, CompletionInput) and request.raw else None
        prompt = await target.server.render(body) if given is None else given
    except Refused as error:
        return NoPrompt(str(error))  # the request itself may not be refused
    if prompt is None:
        return NoPrompt("the target's server doesn't tell what prompt it makes of a chat")
    stripped = strip_bos(prompt, vocabulary)
    if request.raw and stripped != prompt:
        return NoPrompt("the raw prompt has a begin marker of its own, beside the server's")
    return stripped


def strip_bos(prompt: str, vocabulary: LlamaTokenizer | None) -> str:
    """The server adds the begin marker itself: one in the text would be a second one."""
    if vocabulary is None or not vocabulary.adds_begin_marker or not vocabulary.bos_text:
        return prompt
    return prompt.removeprefix(vocabulary.bos_text)


def render_from_file(pair: LocalModels, request: ReplyInput) -> str:
    """The request as a prompt by the file's own template. Raises RunError where it has none, or that refuses."""
    vocabulary, model = pair.target.vocabulary, pair.target.model
    if isinstance(request, CompletionInput) and request.raw:
        return request.prompt
    messages = [message.body() for message in messages_of(request)]
    if not model.chat_template:
        raise RunError(f"{model.path}: the file has no chat template, and no server renders the chat")
    prompt = render_chat(model.chat_template, messages, begin=vocabulary.bos_text, end=vocabulary.eos_text)
    return strip_bos(prompt, vocabulary)


def messages_of(request: ReplyInput) -> list[Message]:
    """The messages of a request; a completion is a chat of one."""
    if isinstance(request, ChatInput):
        return list(request.messages)
    before = [Message(role="system", content=request.system)] if request.system else []
    return [*before, Message(role="user", content=request.prompt)]
