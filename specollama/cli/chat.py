"""`specollama chat`: a conversation in the terminal."""

from __future__ import annotations

import asyncio
import os
import sys
from contextlib import aclosing
from dataclasses import dataclass, field
from typing import Annotated

import typer

from specollama.cli import options, output
from specollama.cli.attachments import encoded
from specollama.errors import RunError
from specollama.pairs import Conversation, Pair
from specollama.report import aligned, stats_lines
from specollama.stats import Done, Event, Stats, Text
from specollama.wire import Message

HELP = """/help    show this
/clear   forget the conversation so far
/stats   show the counters of the last reply
/bye     leave (Ctrl-D too)
Ctrl-C   stop the reply, and keep what was written"""


def chat(
    pair: Annotated[str | None, typer.Argument(metavar="PAIR", help="A pair of the configuration.")] = None,
    config: options.ConfigFile = None,
    target: options.TargetName = None,
    draft: options.DraftName = None,
    keep_alive: options.KeepAlive = None,
    system: Annotated[str | None, typer.Option(help="System message.")] = None,
    image: options.Images = None,
    think: options.Think = None,
    lookahead: options.Lookahead = None,
    route: options.RouteName = None,
    rule: options.RuleName = None,
    temperature: options.Temperature = None,
    seed: options.Seed = None,
    num_predict: options.NumPredict = None,
    show_origin: options.ShowOrigin = False,
) -> None:
    """Chat with a pair: the conversation is kept, and Ctrl-C stops a reply only."""
    sampling = {"temperature": temperature, "seed": seed, "num_predict": num_predict}
    flags = options.flags(lookahead=lookahead, route=route, rule=rule, keep_alive=keep_alive, sampling=sampling)
    settings = options.pair_settings(options.configuration(config), pair, target, draft, flags)
    session = Session(system, [encoded(file) for file in image or []], think)
    show = output.as_text(origin=show_origin, stats=False)
    options.read_any_bytes()
    with asyncio.Runner() as runner:
        talk = Pair(settings, os.environ)
        runner.run(talk.__aenter__())
        try:
            _loop(runner, talk, session, show)
        finally:
            runner.run(talk.__aexit__(None, None, None))


@dataclass(slots=True)
class Session:
    """The conversation. `images` go with the next message."""

    system: str | None
    images: list[str]
    think: bool | None
    stats: Stats | None = None
    messages: list[Message] = field(init=False)

    def __post_init__(self) -> None:
        self.clear()

    def clear(self) -> None:
        self.messages = [Message(role="system", content=self.system)] if self.system else []

    def ask(self, content: str) -> Conversation:
        self.messages.append(Message(role="user", content=content, images=self.images or None))
        self.images = []
        return Conversation(list(self.messages), think=self.think)

    def keep(self, answer: str) -> None:
        """The answer, or the part of it that came; without any, the question is forgotten too."""
        if answer:
            self.messages.append(Message(role="assistant", content=answer))
        else:
            self.images = self.messages.pop().images or []


def _loop(runner: asyncio.Runner, pair: Pair, session: Session, show: output.Display) -> None:
    while True:
        try:
            line = options.decoded(input(">>> " if sys.stdin.isatty() else "")).strip()
            if line == "/bye":
                return
            if line.startswith("/"):
                _command(line, session)
            elif line:
                _turn(runner, pair, session, show, line)
        except EOFError:
            return
        except KeyboardInterrupt:  # outside a reply
            print("\n/bye or Ctrl-D leaves", file=sys.stderr)


def _command(line: str, session: Session) -> None:
    if line == "/help":
        said = HELP
    elif line == "/clear":
        session.clear()
        said = "the conversation is forgotten"
    elif line == "/stats":
        said = aligned(stats_lines(session.stats)) if session.stats else "no reply yet"
    else:
        said = f"unknown command {line.split()[0]}; /help lists them"
    print(said, file=sys.stderr)


def _turn(runner: asyncio.Runner, pair: Pair, session: Session, show: output.Display, line: str) -> None:
    """One question and its answer; whatever ends it, what came is kept."""
    pieces: list[str] = []
    conversation = session.ask(line)

    def take(event: Event) -> None:
        show(event)
        if isinstance(event, Text) and not event.thinking:
            pieces.append(event.text)
        if isinstance(event, Done):
            session.stats = event.stats

    try:
        runner.run(_answer(pair, conversation, take))
    except KeyboardInterrupt:
        show.end()
        print("(stopped)", file=sys.stderr)
    except RunError as error:
        show.end()
        print(f"error: {error}", file=sys.stderr)
    session.keep("".join(pieces))


async def _answer(pair: Pair, conversation: Conversation, take: output.Show) -> None:
    async with aclosing(pair.reply(conversation)) as events:
        async for event in events:
            take(event)
