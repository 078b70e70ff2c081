"""Renders a request as a prompt for an engine: by the engine's template, or by that of the pair's draft model."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Any

from specollama.backends.engines.base import Engine
from specollama.errors import Refused, RunError
from specollama.pairs.prompt import messages_of
from specollama.pairs.request import CompletionInput, ReplyInput
from specollama.pairs.routes.scoring_feasibility import EnginePrompt

Messages = Sequence[Mapping[str, Any]]
Template = Callable[[Messages], Awaitable[str | None]]


async def prompt_for(request: ReplyInput, engine: Engine, kind: str, template: Template) -> EnginePrompt:
    """The request's prompt; without tokens where only the engine's chat endpoint knows it. Raises EndpointError.

    `template`: the draft model's, for an engine that doesn't tell what it makes of a chat. Such a prompt is taken only
    if it has as many tokens as the engine counts itself.
    """
    if isinstance(request, CompletionInput) and request.raw:
        return EnginePrompt(await engine.tokenize(request.prompt, whole=True), request.prompt)
    messages = [message.body() for message in messages_of(request)]
    if not engine.capabilities.renders_chats:
        return await _render_with_draft(messages, engine, kind, template)
    try:
        tokens, text = await engine.render(messages)
    except Refused as error:
        return EnginePrompt(messages=messages, reason=f"{kind} doesn't render the chat: {error}")
    return EnginePrompt(tokens, text)


async def _render_with_draft(messages: Messages, engine: Engine, kind: str, template: Template) -> EnginePrompt:
    try:
        text = await template(messages)
    except RunError as error:
        return EnginePrompt(messages=messages, reason=f"the draft model's template: {error}")
    if text is None:
        why = f"{kind} doesn't tell what prompt it makes of a chat, and the draft has no template to do it"
        return EnginePrompt(messages=messages, reason=why)
    tokens = await engine.tokenize(text, whole=True)
    if (counted := await engine.count_chat_tokens(messages)) != len(tokens):
        why = f"{kind} makes a prompt of {counted} tokens of the chat, the draft model's template one of {len(tokens)}"
        return EnginePrompt(messages=messages, reason=why)
    return EnginePrompt(tokens, text)
