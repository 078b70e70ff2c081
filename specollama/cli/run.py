"""`specollama run`: one prompt, one reply."""

from __future__ import annotations

import asyncio
import os
from contextlib import aclosing
from typing import Annotated

import typer

from specollama.cli import options, output
from specollama.config import PairSettings
from specollama.pairs import Conversation, Pair
from specollama.wire import Message


def run(
    words: Annotated[
        list[str] | None,
        typer.Argument(metavar="[PAIR] [PROMPT]", help="A pair of the configuration; what to answer (or piped in)."),
    ] = None,
    config: options.ConfigFile = None,
    target: options.TargetName = None,
    draft: options.DraftName = None,
    keep_alive: options.KeepAlive = None,
    system: Annotated[str | None, typer.Option(help="System message.")] = None,
    lookahead: options.Lookahead = None,
    route: options.RouteName = None,
    rule: options.RuleName = None,
    temperature: options.Temperature = None,
    top_k: options.TopK = None,
    top_p: options.TopP = None,
    min_p: options.MinP = None,
    typical_p: options.TypicalP = None,
    seed: options.Seed = None,
    num_predict: options.NumPredict = None,
    num_ctx: options.NumCtx = None,
    stop: options.Stop = None,
    repeat_penalty: options.RepeatPenalty = None,
    repeat_last_n: options.RepeatLastN = None,
    presence_penalty: options.PresencePenalty = None,
    frequency_penalty: options.FrequencyPenalty = None,
    show_origin: Annotated[
        bool, typer.Option("--show-origin", help="Colour tokens: accepted green, recovered red, bonus cyan.")
    ] = False,
    stats: Annotated[bool, typer.Option("--stats", help="Print the counters after the reply, on stderr.")] = False,
    json: Annotated[
        bool, typer.Option("--json", help="Print one JSON event a line; the last has the counters.")
    ] = False,
) -> None:
    """Answer one prompt: the reply goes to stdout, everything else to stderr."""
    sampling = {
        "temperature": temperature,
        "top_k": top_k,
        "top_p": top_p,
        "min_p": min_p,
        "typical_p": typical_p,
        "seed": seed,
        "num_predict": num_predict,
        "num_ctx": num_ctx,
        "stop": stop or None,
        "repeat_penalty": repeat_penalty,
        "repeat_last_n": repeat_last_n,
        "presence_penalty": presence_penalty,
        "frequency_penalty": frequency_penalty,
    }
    flags = {
        "lookahead": lookahead,
        "route": route,
        "rule": rule,
        "keep_alive": keep_alive,
        "options": {name: value for name, value in sampling.items() if value is not None},
    }
    known = options.configuration(config)
    name, prompt = options.pair_and_prompt(words or [], known, target_given=target is not None)
    settings = options.pair_settings(known, name, target, draft, flags)
    show = output.as_json() if json else output.as_text(origin=show_origin, stats=stats)
    asyncio.run(_answer(settings, messages(prompt, system), show))


def messages(prompt: str, system: str | None) -> list[Message]:
    before = [Message(role="system", content=system)] if system else []
    return [*before, Message(role="user", content=prompt)]


async def _answer(settings: PairSettings, said: list[Message], show: output.Show) -> None:
    async with Pair(settings, os.environ) as pair, aclosing(pair.reply(Conversation(said))) as events:
        async for event in events:
            show(event)
