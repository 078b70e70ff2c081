"""`specollama run`: one prompt, one reply."""

from __future__ import annotations

import asyncio
import json as json_module
import os
from collections.abc import AsyncGenerator
from contextlib import aclosing
from dataclasses import replace
from types import MappingProxyType
from typing import TYPE_CHECKING, Annotated, Any

import typer

from specollama.backends.ollama.schema import Message
from specollama.cli.terminal import completion, options, output
from specollama.cli.terminal.attachments import load_attachments
from specollama.config.settings import PairSettings
from specollama.errors import UsageError
from specollama.pairs.pair import Pair
from specollama.pairs.request import ChatInput
from specollama.spec_decode.events import Event

if TYPE_CHECKING:
    from specollama.pairs.trace.recorder import TraceFile


@options.takes_sampling
def run(
    words: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="[PAIR] [PROMPT]",
            autocompletion=completion.pairs,
            help="A pair of the configuration; what to answer (or piped in).",
        ),
    ] = None,
    config: options.ConfigFile = None,
    target: options.TargetName = None,
    draft: options.DraftName = None,
    keep_alive: options.KeepAlive = None,
    system: Annotated[str | None, typer.Option(metavar="TEXT", help="System message.")] = None,
    lookahead: options.Lookahead = None,
    route: options.RouteName = None,
    rule: options.RuleName = None,
    sampling: options.Sampling = MappingProxyType({}),
    num_ctx: options.NumCtx = None,
    num_keep: options.NumKeep = None,
    num_thread: options.Threads = None,
    batch_threads: options.BatchThreads = None,
    num_gpu: options.GpuLayers = None,
    kv_type: options.KvType = None,
    use_mmap: options.Mmap = None,
    requantize: options.Requantize = None,
    image: options.Images = None,
    think: options.Think = None,
    format: Annotated[
        str | None, typer.Option(metavar="json|SCHEMA", help="Answer in JSON, or by a JSON schema (given as JSON).")
    ] = None,
    show_origin: options.ShowOrigin = False,
    stats: Annotated[bool, typer.Option("--stats", help="Print the counters after the reply, on stderr.")] = False,
    json: Annotated[
        bool, typer.Option("--json", help="Print one JSON event a line; the last has the counters.")
    ] = False,
    trace: options.Trace = None,
    trace_texts: options.TraceTexts = False,
) -> None:
    """Answer one prompt: the reply goes to stdout, everything else to stderr."""
    loading = {
        "num_ctx": num_ctx,
        "num_keep": num_keep,
        "num_thread": num_thread,
        "num_gpu": num_gpu,
        "use_mmap": use_mmap,
    }
    flags = options.flags(
        lookahead=lookahead,
        route=route,
        rule=rule,
        keep_alive=keep_alive,
        sampling={**sampling, **loading},
        opening={"batch_threads": batch_threads, "kv_type": kv_type, "requantize": requantize},
    )
    known = options.load_configuration(config)
    name, prompt = options.pair_and_prompt(words or [], known, target_given=target is not None)
    settings = options.pair_settings(known, name, target, draft, flags)
    show = output.json_display() if json else output.text_display(origin=show_origin, stats=stats)
    images = load_attachments(image)
    conversation = ChatInput(messages(prompt, system, images), format=_format(format), think=think)
    asyncio.run(_answer(settings, conversation, show, options.trace_file(trace, texts=trace_texts)))


def messages(prompt: str, system: str | None, images: list[str] | None = None) -> list[Message]:
    before = [Message(role="system", content=system)] if system else []
    return [*before, Message(role="user", content=prompt, images=images or None)]


def _format(text: str | None) -> Any:
    if text in (None, "json"):
        return text
    try:
        return json_module.loads(text)
    except ValueError as error:
        raise UsageError(f"--format {text}: neither json nor a JSON schema ({error})") from error


async def _answer(
    settings: PairSettings, conversation: ChatInput, show: output.Display, trace: TraceFile | None
) -> None:
    async with Pair(settings, os.environ) as pair, aclosing(_events(pair, conversation, trace)) as events:
        try:
            async for event in events:
                show(event)
        finally:
            show.end()
    if trace and trace.fault:
        raise typer.Exit(1)  # the trace has printed the fault


def _events(pair: Pair, conversation: ChatInput, trace: TraceFile | None) -> AsyncGenerator[Event, None]:
    if trace is None:
        return pair.reply(conversation)
    from specollama.pairs.trace.recorder import TOP_TOKENS, traced_reply  # loaded with the trace

    return traced_reply(pair, replace(conversation, top_logprobs=TOP_TOKENS), pair.settings, trace)
