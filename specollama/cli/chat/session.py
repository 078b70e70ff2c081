"""A chat as it is held: the pair, the conversation, and one turn after another."""

from __future__ import annotations

import asyncio
import os
import sys
from contextlib import aclosing, nullcontext, suppress
from dataclasses import dataclass, field, replace
from time import monotonic
from typing import Any

from rich.text import Text as RichText

from specollama.backends.ollama.schema import LOAD_OPTIONS
from specollama.cli.chat.line_reader import Reader, without_echo
from specollama.cli.chat.pair_choice import Choice
from specollama.cli.chat.progress import Progress, Room
from specollama.cli.chat.reply_view import Look, ReplyView
from specollama.cli.terminal import output
from specollama.config import private_file
from specollama.config.loading import Config
from specollama.config.settings import Overrides, PairSettings
from specollama.errors import EndpointError, RunError, SpecollamaError, UsageError
from specollama.pairs.conversation import Talk, Turn
from specollama.pairs.history_store import Kept, Store
from specollama.pairs.pair import Pair
from specollama.pairs.report import aligned, stats_lines, stats_object
from specollama.pairs.request import Conversation
from specollama.pairs.trace.recorder import TOP, Recorder, TraceFile, last_file, written
from specollama.spec_decode.events import Done, Event, Status, Text
from specollama.spec_decode.metrics import Stats
from specollama.spec_decode.types import DoneReason, Round


@dataclass(slots=True)
class Heard:
    """What came of a reply."""

    answer: list[str] = field(default_factory=list)
    thinking: list[str] = field(default_factory=list)
    stats: Stats | None = None
    reason: DoneReason | None = None

    def take(self, event: Event) -> None:
        if isinstance(event, Text):
            (self.thinking if event.thinking else self.answer).append(event.text)
        elif isinstance(event, Done):
            self.stats, self.reason = event.stats, event.reason

    @property
    def missing(self) -> str:
        """What to say of a reply that ended without an answer; "" of any other one."""
        if self.reason is None or any(self.answer):
            return ""
        thought = f" ({len(self.thinking)} tokens of thinking)" if self.thinking else ""
        more = "; /set parameter num_predict N allows more tokens" if self.reason is DoneReason.LENGTH else ""
        return f"no answer came{thought}{more}"

    def turn(self) -> Turn:
        stats = stats_object(self.stats) if self.stats else None
        return Turn("assistant", "".join(self.answer), (), "".join(self.thinking), stats, stopped=self.stats is None)


@dataclass(slots=True)
class Session:
    """`terminal`: a person reads along, so that replies are drawn; else they are printed as they come.

    `flags`: what was set of the pair, on the command line and since; `given`: on the command line alone. `store`
    None: nothing is kept; `history`: whether it is at the moment.
    """

    runner: asyncio.Runner
    config: Config
    choice: Choice
    flags: Overrides
    terminal: bool
    look: Look = field(default_factory=Look)
    kept: Kept = field(default_factory=lambda: Kept(Talk()))
    given: Overrides = field(default_factory=Overrides)
    store: Store | None = None
    history: bool = False
    think: bool | str | None = None
    format: Any = None
    trace: TraceFile | None = None
    progress: Progress = field(default_factory=Progress)
    room: Room = field(default_factory=lambda: Room(0, None))
    stats: Stats | None = None
    recorded: Recorder | None = None  # the last reply
    failed: bool = False  # whether any message did
    begun: str = ""  # what the next message begins with
    reader: Reader = field(init=False)  # set it before anything is read
    pair: Pair = field(init=False)
    _opened: Pair = field(init=False)
    _traced: Recorder | None = None  # the same for the trace's file, with or without texts
    _told: str = ""  # the status that was shown last

    def __post_init__(self) -> None:
        self._open(self.choice.settings(self.config, self.flags))

    @property
    def talk(self) -> Talk:
        return self.kept.talk

    def say(self, text: str) -> None:
        """What isn't the answer. Some of it a model wrote, or a server."""
        text = output.harmless(text)
        if text and self.terminal:
            output.stderr(wrap=True).print(RichText(text))
        elif text:
            output.stderr().out(text)

    def close(self) -> None:
        self.runner.run(self._opened.__aexit__(None, None, None))

    def switch(self, choice: Choice, flags: Overrides) -> None:
        """Go on with another pair, or the same one opened anew. Raises SpecollamaError, and nothing has changed."""
        settings = choice.settings(self.config, flags)
        self.close()
        self.choice, self.flags, self.room = choice, flags, Room(self.room.used, None)
        self._open(settings)

    def go_on(self, choice: Choice, flags: Overrides) -> None:
        """With this pair as these flags have it, which stays open where it can. Raises as `switch` does."""
        if choice == self.choice and _beside_options(flags) == _beside_options(self.flags):
            self.tune(flags)
        else:
            self.switch(choice, flags)

    def tune(self, flags: Overrides) -> None:
        """Set something of the pair, which stays open where it can. Raises UsageError, and nothing has changed."""
        before, after = self.flags.get("options") or {}, flags.get("options") or {}
        anew = {name for name in {*before, *after} if before.get(name) != after.get(name)}
        if anew & LOAD_OPTIONS or before.keys() - after.keys():
            self.switch(self.choice, flags)
        else:
            self.pair, self.flags = self._opened.tuned(**flags), flags

    def ask(self, text: str, images: list[str]) -> None:
        """One question and its answer."""
        if self.room.full:
            self.failed = True
            self.begun, self.talk.images = text, [*self.talk.images, *images]
            self.say(f"this doesn't fit any more ({self.room.words()}): {self.room.advice}")
            return
        self.talk.ask(text, images)
        self.answer()

    def answer(self, instead: list[Turn] | None = None) -> None:
        """Answers the last question. Whatever ends it, what came is kept; where nothing came, so is what was before.

        `instead`: the turns that it replaces, unless a fault breaks it off.
        """
        heard, waiting = Heard(), self.talk.images
        question = self.talk.turns[-1]
        whole = self._reply(heard)
        came = self.talk.keep(heard.turn())
        self.failed |= bool(heard.missing)
        self.say(heard.missing)
        if instead is not None and not (came and whole):
            self.talk.turns, self.talk.images = instead, waiting
            self.say("(the answer before stays)")
        elif came:
            self.keep()
            self._measure(heard.stats)  # asks a server, and may be interrupted
        else:
            self.begun = question.content

    def keep(self) -> None:
        """The conversation as it is now, where that is wanted."""
        if self.store is None or not self.history or not (self.talk.turns or self.kept.id):
            return
        before, name = self.kept.id, self.kept.name
        try:
            self.kept, named = _saved(self.store, self.held())
        except RunError as error:
            self.history = False
            self.say(f"error: {error}")
            return
        if not named:
            self.say(f"(another conversation is called {name} by now: this one is kept as {self.kept.id})")
        elif before is not None and self.kept.id != before:
            self.say(f"(another chat went on with conversation {before}: this one is kept as {self.kept.id})")

    def held(self) -> Kept:
        """The conversation with what it is held with now."""
        options = {name: value for name, value in self.flags.items() if value is not None}
        return replace(self.kept, pair=self.choice.as_object(), options=options)

    def status(self) -> str:
        """The line under the prompt."""
        name = self.pair.settings.name or str(self.pair.settings.target)
        return " · ".join(part for part in (name, self.progress.line(), self.room.words()) if part)

    def _open(self, settings: PairSettings) -> None:
        self._opened = self.pair = Pair(settings, os.environ)
        self.runner.run(self._opened.__aenter__())

    def _reply(self, heard: Heard) -> bool:
        """Whether no fault broke it off."""
        self.progress, self.stats = Progress(), None
        self.recorded = Recorder(self.pair.settings, texts=True)
        self._traced = self.trace.recorder(self.pair.settings) if self.trace else None
        show, whole = self._display(), True
        try:
            with without_echo() if self.terminal else nullcontext():
                self.runner.run(self._events(heard, show))
        except KeyboardInterrupt:
            show.end()
            self.say("(stopped)")
        except SpecollamaError as error:
            self.failed, whole = True, False
            show.end()
            for recorder in self._recorders:
                recorder.broke_off(str(error))
            self.say(f"error: {error}{self._advice(error)}")
        self._keep_traces()
        return whole

    def _display(self) -> output.Display:
        if self.terminal and self.look.wordwrap:
            return ReplyView(output.stdout(wrap=True), self.look, self.progress)
        return output.as_text(origin=self.look.origin, stats=False, styles=self.look.styles)

    async def _events(self, heard: Heard, show: output.Display) -> None:
        conversation = Conversation(
            self.talk.messages,
            format=self.format,
            think=self.think,
            top_logprobs=TOP if self.trace else 0,
            truncate=False,
        )
        if isinstance(show, ReplyView):
            show.start()
        pair = self.pair.watched(self._round)
        async with aclosing(pair.reply(conversation)) as events:
            async for event in events:
                heard.take(event)
                for recorder in self._recorders:
                    recorder.event(event)
                self.progress.event(event, monotonic())
                self._tell(event, show)
                show(event)
        self.stats = heard.stats
        if self.look.verbose and self.stats:
            self.say(aligned(stats_lines(self.stats)))

    def _round(self, done: Round) -> None:
        self.progress.round(done)
        for recorder in self._recorders:
            recorder.round(done)

    def _tell(self, event: Event, show: output.Display) -> None:
        """How it is speculated is told when that changes; the line of counts says it all the time."""
        if isinstance(event, Status) and isinstance(show, ReplyView) and str(event) != self._told:
            self._told = str(event)
            show.say(self._told)

    def _measure(self, stats: Stats | None) -> None:
        """How full the context is, told when it gets full."""
        if stats is None:
            return
        length = None
        with suppress(EndpointError):
            length = self.runner.run(self.pair.context_length())
        before, self.room = self.room, Room(stats.prompt_eval_count + stats.eval_count, length)
        self.say(self.room.announcement(before))

    def _advice(self, error: SpecollamaError) -> str:
        long = any(word in str(error) for word in ("context", "exceed", "longer than"))
        return f"; {self.room.advice}" if long and "num_ctx" not in str(error) else ""

    @property
    def _recorders(self) -> list[Recorder]:
        """What records the reply that runs."""
        return [recorder for recorder in (self.recorded, self._traced) if recorder]

    def _keep_traces(self) -> None:
        for recorder in self._recorders:
            recorder.broke_off()
        if self.trace and self._traced:
            self.trace.add(self._traced)
        if self.history and self.recorded:
            with suppress(OSError):  # a convenience: `--trace` is for those who rely on it
                last_file().parent.mkdir(parents=True, exist_ok=True, mode=0o700)
                private_file.write(last_file(), written(self.recorded))


def _saved(store: Store, kept: Kept) -> tuple[Kept, bool]:
    """The conversation as it is kept, and whether under its name: another one may have that by now."""
    try:
        return store.save(kept), True
    except UsageError:
        return store.save(replace(kept, name=None)), False


def _beside_options(flags: Overrides) -> dict[str, Any]:
    return {name: value for name, value in flags.items() if name != "options" and value is not None}


def piped() -> bool:
    """Whether nobody sits at a terminal that can be drawn on."""
    ours = (sys.stdin, sys.stdout)
    return os.environ.get("TERM") == "dumb" or not all(stream is not None and stream.isatty() for stream in ours)
