"""What prompt a request becomes: by its target's server, or by the template of the target's own file."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from specollama.backends.llama_cpp.chat_template import rendered
from specollama.backends.llama_cpp.tokenizer import LlamaVocabulary
from specollama.backends.ollama.model_info import Model
from specollama.backends.ollama.schema import Message
from specollama.errors import Refused, RunError
from specollama.pairs.request import Ask, Completion, Conversation

if TYPE_CHECKING:
    from specollama.pairs.routes.local_models import OpenedPair


@dataclass(frozen=True, slots=True)
class Unprompted:
    """Why there is no prompt."""

    reason: str


async def rendered_by_server(
    ask: Ask, body: Mapping[str, Any], target: Model, vocabulary: LlamaVocabulary | None
) -> str | Unprompted:
    """The prompt that the target is given, without the begin marker that is added to it. `body`: of the request."""
    try:
        prompt = ask.prompt if isinstance(ask, Completion) and ask.raw else await target.server.render(dict(body))
    except Refused as error:
        return Unprompted(str(error))  # the request itself may not be refused
    if prompt is None:
        return Unprompted("the target's server doesn't tell what prompt it makes of a chat")
    stripped = without_begin_marker(prompt, vocabulary)
    if ask.raw and stripped != prompt:
        return Unprompted("the raw prompt has a begin marker of its own, beside the server's")
    return stripped


def without_begin_marker(prompt: str, vocabulary: LlamaVocabulary | None) -> str:
    """The server adds the begin marker itself: one in the text would be a second one."""
    if vocabulary is None or not vocabulary.adds_begin_marker or not vocabulary.begin_marker:
        return prompt
    return prompt.removeprefix(vocabulary.begin_marker)


def own_prompt(pair: OpenedPair, ask: Ask) -> str:
    """The request as a prompt by the file's own template. Raises RunError where it has none, or that refuses."""
    vocabulary, model = pair.target.vocabulary, pair.target.model
    if isinstance(ask, Completion) and ask.raw:
        return ask.prompt
    messages = [message.body() for message in chat_of(ask)]
    if not model.chat_template:
        raise RunError(f"{model.path}: the file has no chat template, and no server renders the chat")
    prompt = rendered(model.chat_template, messages, begin=vocabulary.begin_marker, end=vocabulary.end_marker)
    return without_begin_marker(prompt, vocabulary)


def chat_of(ask: Ask) -> list[Message]:
    """The messages of a request; a completion is a chat of one."""
    if isinstance(ask, Conversation):
        return list(ask.messages)
    before = [Message(role="system", content=ask.system)] if ask.system else []
    return [*before, Message(role="user", content=ask.prompt)]
