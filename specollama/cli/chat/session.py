"""Session of a chat: the pair, the conversation, and its turns."""

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
from specollama.cli.chat.line_reader import MessageReader, without_echo
from specollama.cli.chat.pair_choice import PairChoice
from specollama.cli.chat.progress import ContextUsage, ReplyProgress
from specollama.cli.chat.reply_view import ReplyView, ViewSettings
from specollama.cli.terminal import output
from specollama.cli.terminal.escaping import escape_controls
from specollama.config import private_file
from specollama.config.loading import Config
from specollama.config.settings import Overrides, PairSettings
from specollama.errors import EndpointError, Refused, RunError, SpecollamaError, UsageError
from specollama.pairs.conversation import ChatHistory, ChatTurn
from specollama.pairs.history_store import ConversationStore, SavedConversation
from specollama.pairs.pair import Pair
from specollama.pairs.report import align_columns, stats_lines, stats_object
from specollama.pairs.request import ChatInput
from specollama.pairs.trace.recorder import TOP_TOKENS, TraceFile, TraceRecorder, last_trace_file, trace_text
from specollama.spec_decode.events import Done, Event, Status, Text
from specollama.spec_decode.metrics import Stats
from specollama.spec_decode.types import DoneReason, RoundRecord


@dataclass(slots=True)
class ReplyBuffer:
    """Outcome of a reply."""

    answer: list[str] = field(default_factory=list)
    thinking: list[str] = field(default_factory=list)
    stats: Stats | None = None
    reason: DoneReason | None = None

    def add(self, event: Event) -> None:
        if isinstance(event, Text):
            (self.thinking if event.thinking else self.answer).append(event.text)
        elif isinstance(event, Done):
            self.stats, self.reason = event.stats, event.reason

    @property
    def missing_answer(self) -> str:
        """What to say of a reply that ended without an answer; "" of any other one."""
        if self.reason is None or any(self.answer):
            return ""
        thought = f" ({len(self.thinking)} tokens of thinking)" if self.thinking else ""
        more = "; /set parameter num_predict N allows more tokens" if self.reason is DoneReason.LENGTH else ""
        return f"no answer came{thought}{more}"

    def turn(self) -> ChatTurn:
        stats = stats_object(self.stats) if self.stats else None
        return ChatTurn(
            "assistant", "".join(self.answer), (), "".join(self.thinking), stats, stopped=self.stats is None
        )


@dataclass(slots=True)
class ChatSession:
    """`terminal`: a person reads along, so that replies are drawn; else they are printed as they come.

    `flags`: what was set of the pair, on the command line and since; `given`: on the command line alone. `store`
    None: nothing is kept; `history`: whether it is at the moment.
    """

    runner: asyncio.Runner
    config: Config
    choice: PairChoice
    flags: Overrides
    terminal: bool
    view: ViewSettings = field(default_factory=ViewSettings)
    saved: SavedConversation = field(default_factory=lambda: SavedConversation(ChatHistory()))
    given: Overrides = field(default_factory=Overrides)
    store: ConversationStore | None = None
    history: bool = False
    think: bool | str | None = None
    format: Any = None
    trace: TraceFile | None = None
    progress: ReplyProgress = field(default_factory=ReplyProgress)
    context_usage: ContextUsage = field(default_factory=lambda: ContextUsage(0, None))
    stats: Stats | None = None
    last_trace: TraceRecorder | None = None  # the last reply
    failed: bool = False  # whether any message did
    prefilled_input: str = ""  # what the next message begins with
    reader: MessageReader = field(init=False)  # set it before anything is read
    pair: Pair = field(init=False)
    _opened: Pair = field(init=False)
    _file_trace: TraceRecorder | None = None  # the same for the trace's file, with or without texts
    _last_status: str = ""  # the status that was shown last

    def __post_init__(self) -> None:
        self._open(self.choice.settings(self.config, self.flags))

    @property
    def history_so_far(self) -> ChatHistory:
        return self.saved.history

    def say(self, text: str) -> None:
        """Show a message beside the answer. Its text may come from a model or a server."""
        text = escape_controls(text)
        if text and self.terminal:
            output.stderr(wrap=True).print(RichText(text))
        elif text:
            output.stderr().out(text)

    def close(self) -> None:
        self.runner.run(self._opened.__aexit__(None, None, None))

    def switch(self, choice: PairChoice, flags: Overrides) -> None:
        """Go on with another pair, or the same one opened anew. Raises SpecollamaError, and nothing has changed."""
        settings = choice.settings(self.config, flags)
        self.close()
        self.choice, self.flags, self.context_usage = choice, flags, ContextUsage(self.context_usage.used, None)
        self._open(settings)

    def resume(self, choice: PairChoice, flags: Overrides) -> None:
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
            self.pair, self.flags = self._opened.with_overrides(**flags), flags

    def ask(self, text: str, images: list[str]) -> None:
        """One question and its answer."""
        if self.context_usage.full:
            self.failed = True
            self.prefilled_input, self.history_so_far.images = text, [*self.history_so_far.images, *images]
            self.say(f"this doesn't fit any more ({self.context_usage.text()}): {self.context_usage.advice}")
            return
        self.history_so_far.add_question(text, images)
        self.answer()

    def answer(self, instead: list[ChatTurn] | None = None) -> None:
        """Answers the last question. Whatever ends it, what came is kept; where nothing came, so is what was before.

        `instead`: the turns that it replaces, unless a fault breaks it off.
        """
        heard, waiting = ReplyBuffer(), self.history_so_far.images
        question = self.history_so_far.turns[-1]
        try:
            whole = self._reply(heard)
        except BaseException:  # SIGTERM, or a terminal that is gone: nothing can be shown or asked any more
            self._save_unfinished(heard, instead)
            raise
        came = self.history_so_far.add_answer(heard.turn())
        self.failed |= bool(heard.missing_answer)
        self.say(heard.missing_answer)
        if instead is not None and not (came and whole):
            self.history_so_far.turns, self.history_so_far.images = instead, waiting
            self.say("(the answer before stays)")
        elif came:
            self.save()
            self._update_context(heard.stats)  # asks a server, and may be interrupted
        else:
            self.prefilled_input = question.content

    def save(self) -> None:
        """The conversation as it is now, where that is wanted."""
        if self.store is None or not self.history or not (self.history_so_far.turns or self.saved.id):
            return
        before, name = self.saved.id, self.saved.name
        try:
            self.saved, named = _saved(self.store, self.current())
        except RunError as error:
            self.history = False
            self.say(f"error: {error}")
            return
        if not named:
            self.say(f"(another conversation is called {name} by now: this one is kept as {self.saved.id})")
        elif before is not None and self.saved.id != before:
            self.say(f"(another chat went on with conversation {before}: this one is kept as {self.saved.id})")

    def _save_unfinished(self, heard: ReplyBuffer, instead: list[ChatTurn] | None) -> None:
        """Save the conversation with what came of the answer, or with a question that has no answer yet."""
        if instead is not None:
            self.history_so_far.turns = instead
        elif heard.turn().content:
            self.history_so_far.add_answer(heard.turn())
        with suppress(OSError):  # what `save` has to say; the terminal may be gone
            self.save()

    def take_back_unanswered(self) -> None:
        """A question that was saved without its answer becomes the prefilled input again."""
        turns = self.history_so_far.turns
        if turns and turns[-1].role == "user":
            question = turns.pop()
            self.prefilled_input, self.history_so_far.images = question.content, list(question.images)

    def current(self) -> SavedConversation:
        """The conversation with what it is held with now."""
        options = {name: value for name, value in self.flags.items() if value is not None}
        return replace(self.saved, pair=self.choice.as_object(), options=options)

    def status(self) -> str:
        """The line under the prompt. A narrow terminal cuts its end off, so the context comes early."""
        name = self.pair.settings.name or str(self.pair.settings.target)
        return " · ".join(part for part in (name, self.context_usage.text(), self.progress.line()) if part)

    def _open(self, settings: PairSettings) -> None:
        self._opened = self.pair = Pair(settings, os.environ)
        self.runner.run(self._opened.__aenter__())

    def _reply(self, heard: ReplyBuffer) -> bool:
        """Whether no fault broke it off."""
        self.progress, self.stats = ReplyProgress(), None
        self.last_trace = TraceRecorder(self.pair.settings, texts=True)
        self._file_trace = self.trace.recorder(self.pair.settings) if self.trace else None
        show, whole = self._display(), True
        try:
            with without_echo() if self.terminal else nullcontext():
                self.runner.run(self._events(heard, show))
        except KeyboardInterrupt:
            show.end()
            self.say("(stopped)")
        except asyncio.CancelledError:  # SIGTERM or SIGHUP: the command ends
            with suppress(OSError):
                show.end()
            self._keep_traces()
            raise
        except SpecollamaError as error:
            self.failed, whole = True, False
            show.end()
            for recorder in self._recorders:
                recorder.fail(str(error))
            self.say(f"error: {error}{self._advice(error)}")
        self._keep_traces()
        return whole

    def _display(self) -> output.Display:
        if self.terminal and self.view.wordwrap:
            return ReplyView(output.stdout(wrap=True), self.view, self.progress)
        return output.text_display(origin=self.view.origin, stats=False, styles=self.view.styles)

    async def _events(self, heard: ReplyBuffer, show: output.Display) -> None:
        conversation = ChatInput(
            self.history_so_far.messages,
            format=self.format,
            think=self.think,
            top_logprobs=TOP_TOKENS if self.trace else 0,
            truncate=False,
        )
        if isinstance(show, ReplyView):
            show.start()
        pair = self.pair.with_observer(self._round)
        async with aclosing(pair.reply(conversation)) as events:
            async for event in events:
                heard.add(event)
                for recorder in self._recorders:
                    recorder.event(event)
                self.progress.event(event, monotonic())
                self._show_status(event, show)
                show(event)
        self.stats = heard.stats
        if self.view.verbose and self.stats:
            self.say(align_columns(stats_lines(self.stats)))

    def _round(self, done: RoundRecord) -> None:
        self.progress.round(done)
        for recorder in self._recorders:
            recorder.round(done)

    def _show_status(self, event: Event, show: output.Display) -> None:
        """Show a change of the route as a line of its own; the status line always has the current route."""
        if isinstance(event, Status) and isinstance(show, ReplyView) and str(event) != self._last_status:
            self._last_status = str(event)
            show.say(self._last_status)

    def _update_context(self, stats: Stats | None) -> None:
        """Warn when the context is nearly full."""
        if stats is None:
            return
        length = None
        with suppress(EndpointError):
            length = self.runner.run(self.pair.context_length())
        before, self.context_usage = (
            self.context_usage,
            ContextUsage(stats.prompt_eval_count + stats.eval_count, length),
        )
        self.say(self.context_usage.announcement(before))

    def _advice(self, error: SpecollamaError) -> str:
        full = isinstance(error, Refused) and error.is_context_full
        return f"; {self.context_usage.advice}" if full else ""

    @property
    def _recorders(self) -> list[TraceRecorder]:
        """Recorder of the current reply."""
        return [recorder for recorder in (self.last_trace, self._file_trace) if recorder]

    def _keep_traces(self) -> None:
        for recorder in self._recorders:
            recorder.fail()
        if self.trace and self._file_trace:
            self.trace.add(self._file_trace)
        if self.history and self.last_trace:
            with suppress(OSError):  # a convenience: `--trace` is for those who rely on it
                last_trace_file().parent.mkdir(parents=True, exist_ok=True, mode=0o700)
                private_file.write_private(last_trace_file(), trace_text(self.last_trace))


def _saved(store: ConversationStore, kept: SavedConversation) -> tuple[SavedConversation, bool]:
    """The conversation as it is kept, and whether under its name: another one may have that by now."""
    try:
        return store.save(kept), True
    except UsageError:
        return store.save(replace(kept, name=None)), False


def _beside_options(flags: Overrides) -> dict[str, Any]:
    return {name: value for name, value in flags.items() if name != "options" and value is not None}


def is_piped() -> bool:
    """Whether nobody sits at a terminal that can be drawn on."""
    ours = (sys.stdin, sys.stdout)
    return os.environ.get("TERM") == "dumb" or not all(stream is not None and stream.isatty() for stream in ours)
