"""What /api/generate and /api/chat answer: one reply at once, or a stream of them.

The checks come in Ollama's order, since a client may send what fails several of them.
"""

from __future__ import annotations

import time
from collections.abc import AsyncGenerator, Callable
from contextlib import aclosing
from functools import partial
from typing import Any

from specollama.backends.ollama import request_validation
from specollama.backends.ollama.schema import ChatReply, ChatRequest, DebugInfo, GenerateReply, GenerateRequest, Message
from specollama.errors import ApiError
from specollama.pairs.ollama_response import utc_now
from specollama.server.embedded.options import engine_body, resolve_options
from specollama.server.embedded.response_translation import (
    ChatSteps,
    Clock,
    Step,
    chat_reply,
    completion_step,
    generate_reply,
)
from specollama.server.embedded.schema_limits import check_schemas
from specollama.server.embedded.served_model import ServedModel, engine_messages

EndpointReply = GenerateReply | ChatReply | AsyncGenerator[GenerateReply] | AsyncGenerator[ChatReply]


async def generate(
    model: ServedModel, ask: GenerateRequest, started: int
) -> GenerateReply | AsyncGenerator[GenerateReply]:
    """`started`: nanoseconds of the monotonic clock. `ApiError` for what is refused before the first token."""
    if not ask.prompt and request_validation.asks_to_unload(ask):
        return _generate_done(ask, "unload")
    if ask.raw and (ask.template or ask.system or ask.context):
        raise ApiError(400, "raw mode does not support template, system, or context")
    _check_capabilities(model, ask, insert=bool(ask.suffix))
    check_schemas(ask.format)
    options = resolve_options(model.engine.num_ctx, model.card.parameters, ask.options)
    clock = Clock(started, time.monotonic_ns())
    if not ask.prompt:
        return _generate_done(ask, "load")
    if ask.template:
        raise ApiError(400, "templates are not supported by this server: render the prompt, and send it raw")
    if ask.images:
        raise ApiError(400, f"{model.card.full_name} does not support vision")
    text = ask.prompt if ask.raw else await _rendered(model, ask)
    if ask.debug_render_only:
        return GenerateReply(model=ask.model, created_at=utc_now(), _debug_info=DebugInfo(rendered_template=text))
    return _generated(model, ask, options, text, clock)


async def chat(model: ServedModel, ask: ChatRequest, started: int) -> ChatReply | AsyncGenerator[ChatReply]:
    """`started`: nanoseconds of the monotonic clock. `ApiError` for what is refused before the first token."""
    if not ask.messages and request_validation.asks_to_unload(ask):
        return _chat_done(ask, "unload")
    _check_capabilities(model, ask, tools=bool(ask.tools))
    check_schemas(ask.format, ask.tools)
    options = resolve_options(model.engine.num_ctx, model.card.parameters, ask.options)
    clock = Clock(started, time.monotonic_ns())
    if not ask.messages:
        return _chat_done(ask, "load")
    if any(message.images for message in ask.messages):
        raise ApiError(400, f"{model.card.full_name} does not support vision")
    body = await _chat_body(model, ask, options)
    if ask.debug_render_only:
        info = DebugInfo(rendered_template=await model.render(body))
        return ChatReply(model=ask.model, created_at=utc_now(), message=Message(role=""), _debug_info=info)
    return _chatted(model, ask, body, clock)


def _check_capabilities(
    model: ServedModel, ask: GenerateRequest | ChatRequest, *, insert: bool = False, tools: bool = False
) -> None:
    able = model.card.capabilities
    if ask.think and "thinking" not in able:
        raise ApiError(400, f'"{ask.model}" does not support thinking')
    if insert and "insert" not in able:
        raise ApiError(400, f"{model.card.full_name} does not support insert")
    if tools and "tools" not in able:
        raise ApiError(400, f"{model.card.full_name} does not support tools")


def _generate_done(ask: GenerateRequest, reason: str) -> GenerateReply:
    return GenerateReply(model=ask.model, created_at=utc_now(), done=True, done_reason=reason)


def _chat_done(ask: ChatRequest, reason: str) -> ChatReply:
    return ChatReply(model=ask.model, created_at=utc_now(), done=True, done_reason=reason)


def _template_arguments(model: ServedModel, ask: GenerateRequest | ChatRequest) -> dict[str, Any]:
    """What the template is told of thinking: a model that can does, unless told otherwise."""
    think = ask.think
    if think is None and "thinking" in model.card.capabilities:
        think = True
    if think is None:
        return {}
    effort = {"reasoning_effort": think} if isinstance(think, str) else {}
    return {"chat_template_kwargs": {"enable_thinking": bool(think), **effort}}


async def _rendered(model: ServedModel, ask: GenerateRequest) -> str:
    messages = [Message(role="system", content=ask.system)] if ask.system else []
    messages.append(Message(role="user", content=ask.prompt))
    body = _template_arguments(model, ask)
    if request_validation.asks_to_truncate(ask):
        messages = await model.fit_chat(messages, body)
    before = await model.engine.detokenize(ask.context) if ask.context else ""
    return before + await model.render({**body, "messages": engine_messages(messages)})


async def _generated(
    model: ServedModel, ask: GenerateRequest, options: dict[str, Any], text: str, clock: Clock
) -> AsyncGenerator[GenerateReply]:
    body = engine_body(options, model.engine.num_ctx) | _completion_format(ask.format)
    if not body["n_predict"]:
        body["n_predict"] = -1  # Ollama leaves 0 out, which llama-server takes for no limit
    if ask.logprobs:
        body["n_probs"] = max(ask.top_logprobs, 1)
    body["prompt"] = await _prompt(model, ask, options, text)
    if ask.shift is False:
        body["n_predict"] = await _within(model, body["n_predict"], body["prompt"])
    written = []
    async for step in _steps(
        model, "/completion", body, partial(completion_step, top=request_validation.requested_logprobs(ask))
    ):
        written.append(step.text)
        reply = generate_reply(ask.model, step, clock)
        if step.done and not ask.raw:
            reply.context = await model.engine.tokenize(text + "".join(written))
        yield reply


async def _prompt(model: ServedModel, ask: GenerateRequest, options: dict[str, Any], text: str) -> str | list[int]:
    if model.card.adds_bos:
        text = text.removeprefix("<bos>")
    if not request_validation.asks_to_truncate(ask):
        return text
    return await model.fit_prompt(text, options["num_keep"], shift=ask.shift is not False)


async def _within(model: ServedModel, n_predict: int, prompt: str | list[int]) -> int:
    """`n_predict` cut so that the context is never shifted (a prompt that is too long: as it is)."""
    tokens = await model.engine.tokenize(prompt, add_special=True) if isinstance(prompt, str) else prompt
    room = model.engine.num_ctx - len(tokens)
    return n_predict if room <= 0 else room if n_predict < 0 else min(n_predict, room)


def _completion_format(wanted: Any) -> dict[str, Any]:
    if wanted is None or wanted == "":
        return {}
    if wanted == "json":
        return {"json_schema": {"type": "object"}}
    if isinstance(wanted, dict):
        return {"json_schema": wanted}
    raise _bad_format(wanted)


def _chat_format(wanted: Any) -> dict[str, Any]:
    if wanted is None or wanted == "":
        return {}
    if wanted == "json":
        return {"response_format": {"type": "json_object"}}
    if isinstance(wanted, dict):
        schema = {"name": "schema", "schema": wanted}
        return {"response_format": {"type": "json_schema", "json_schema": schema}}
    raise _bad_format(wanted)


def _bad_format(wanted: Any) -> ApiError:
    return ApiError(500, f'invalid format: "{wanted}"; expected "json" or a valid JSON Schema object')


async def _chat_body(model: ServedModel, ask: ChatRequest, options: dict[str, Any]) -> dict[str, Any]:
    body = engine_body(options, model.engine.num_ctx) | _chat_format(ask.format)
    body |= _template_arguments(model, ask)
    if ask.tools:
        body["tools"] = ask.tools
    if ask.logprobs:
        body |= {"logprobs": True, "top_logprobs": max(ask.top_logprobs, 1)}
    messages = ask.messages
    if request_validation.asks_to_truncate(ask):
        messages = await model.fit_chat(messages, body)
    body["messages"] = engine_messages(messages)
    if ask.shift is False:
        body["n_predict"] = await _within(model, body["n_predict"], await model.render(body))
    return body


async def _chatted(
    model: ServedModel, ask: ChatRequest, body: dict[str, Any], clock: Clock
) -> AsyncGenerator[ChatReply]:
    steps = ChatSteps(request_validation.requested_logprobs(ask))
    async for step in _steps(model, "/v1/chat/completions", body, steps.step):
        yield chat_reply(ask.model, step, clock)


async def _steps(
    model: ServedModel, endpoint: str, body: dict[str, Any], read: Callable[[dict[str, Any]], Step]
) -> AsyncGenerator[Step]:
    """The steps that are shown; the last one only when the slot is free, for the client's next request."""
    last = None
    async with aclosing(model.engine.events(endpoint, body)) as events:
        async for event in events:
            step = read(event)
            if step.done:
                last = step
            elif step.shown:
                yield step
    if last is None:
        raise ApiError(500, "the model's reply ended before it was done")
    yield last
