"""`specollama chat`: a conversation in the terminal."""

from __future__ import annotations

import asyncio
import sys
from types import MappingProxyType
from typing import TYPE_CHECKING, Annotated, Any

import typer

from specollama.cli.terminal import completion, options
from specollama.cli.terminal.attachments import load_attachments
from specollama.cli.terminal.standard_streams import read_any_bytes
from specollama.config.loading import Config
from specollama.errors import ConfigError, UsageError

if TYPE_CHECKING:
    from specollama.cli.chat.line_reader import MessageReader
    from specollama.cli.chat.pair_choice import PairChoice
    from specollama.cli.chat.reply_view import ViewSettings
    from specollama.cli.chat.session import ChatSession
    from specollama.pairs.history_store import ConversationStore, SavedConversation

_CONVERSATION = "Conversation"


@options.takes_sampling
def chat(
    pair: Annotated[
        str | None,
        typer.Argument(
            metavar="PAIR",
            autocompletion=completion.pairs,
            help="A pair of the configuration; embedded: one that needs neither it nor Ollama.",
        ),
    ] = None,
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
    sampling: options.Sampling = MappingProxyType({}),
    num_ctx: options.NumCtx = None,
    num_thread: options.Threads = None,
    batch_threads: options.BatchThreads = None,
    num_gpu: options.GpuLayers = None,
    kv_type: options.KvType = None,
    use_mmap: options.Mmap = None,
    requantize: options.Requantize = None,
    show_origin: options.ShowOrigin = False,
    theme: Annotated[
        str | None,
        typer.Option(
            metavar="default|colourblind|mono",
            show_default="the configuration's",
            help="The colours of origins; none under NO_COLOR.",
        ),
    ] = None,
    verbose: Annotated[bool, typer.Option("--verbose", help="Print the counters after each reply.")] = False,
    resume: Annotated[
        bool, typer.Option("-c", "--continue", rich_help_panel=_CONVERSATION, help="Go on with the last one.")
    ] = False,
    load: Annotated[
        str | None,
        typer.Option(metavar="NAME", rich_help_panel=_CONVERSATION, help="Go on with one that was kept."),
    ] = None,
    history: Annotated[
        bool | None,
        typer.Option(
            "--history/--no-history",
            rich_help_panel=_CONVERSATION,
            show_default="kept, unless piped",
            help="Keep the conversation, and what was typed.",
        ),
    ] = None,
    trace: options.Trace = None,
    trace_texts: options.TraceTexts = False,
) -> None:
    """Chat with a pair: the conversation is kept, and Ctrl-C stops a reply only.

    Piped, it ends with 1 if any message failed.
    """
    # here, since other commands don't need what a chat is made of, and some of it takes long to load
    from specollama.cli.chat.pair_choice import PairChoice, merge_flags
    from specollama.cli.chat.reply_view import THEMES
    from specollama.cli.chat.session import ChatSession, is_piped
    from specollama.pairs.history_store import ConversationStore

    if theme not in (None, *THEMES):
        raise UsageError(f"--theme {theme}: must be one of {', '.join(THEMES)}")
    loading = {
        "num_ctx": num_ctx,
        "num_thread": num_thread,
        "num_gpu": num_gpu,
        "use_mmap": use_mmap,
    }
    flags: Any = options.flags(
        lookahead=lookahead,
        route=route,
        rule=rule,
        keep_alive=keep_alive,
        sampling={**sampling, **loading},
        opening={"batch_threads": batch_threads, "kv_type": kv_type, "requantize": requantize},
    )
    known = options.load_configuration(config)
    terminal = not is_piped()
    kept = _kept(ConversationStore(), resume, load)
    wanted = known.table.chat.history if history is None else history
    store = ConversationStore() if (terminal or kept.id is not None if wanted is None else wanted) else None
    choice = _choice(PairChoice(pair, target, draft), kept, known, terminal)
    kept.history.system = system or kept.history.system
    kept.history.images = load_attachments(image)
    read_any_bytes()
    with asyncio.Runner() as runner:
        session = ChatSession(
            runner,
            known,
            choice,
            merge_flags(kept, choice, flags),
            terminal=terminal,
            view=_look(known, origin=show_origin, theme=theme, verbose=verbose),
            saved=kept,
            given=flags,
            store=store,
            history=store is not None,
            think=think,
            trace=options.trace_file(trace, texts=trace_texts),
        )
        session.reader = _reader(session)
        try:
            _hold(session)
        finally:
            session.close()
    if session.failed and not terminal:  # nobody may have seen it
        raise typer.Exit(1)


def _look(config: Config, *, origin: bool, theme: str | None, verbose: bool) -> ViewSettings:
    from specollama.cli.chat.reply_view import ViewSettings

    table = config.table.chat
    return ViewSettings(
        origin=origin or table.origin,
        markdown=table.markdown,
        wordwrap=table.wordwrap,
        fold=table.fold,
        theme=theme or table.theme,
        verbose=verbose or table.verbose,
    )


def _kept(store: ConversationStore, resume: bool, load: str | None) -> SavedConversation:
    """The conversation that goes on, or a new one."""
    from specollama.pairs.conversation import ChatHistory
    from specollama.pairs.history_store import SavedConversation

    if load is not None:
        return store.load(load)
    last = store.last() if resume else None
    if resume and last is None:
        print("no conversation is kept yet: a new one begins", file=sys.stderr)
    return last or SavedConversation(ChatHistory())


def _choice(given: PairChoice, kept: SavedConversation, config: Config, terminal: bool) -> PairChoice:
    """The pair that was given, else the one the conversation was held with, else the default one.

    Raises UsageError or ConfigError in at most three lines where there is none.
    """
    from specollama.cli.chat.pair_choice import PairChoice, no_pair_text
    from specollama.config.settings import EMBEDDED

    if not given.given and PairChoice.of(kept.pair).given:
        return PairChoice.of(kept.pair)
    if given.given or given.draft is not None or config.table.pairs or config.is_embedded(None):
        return given
    if not terminal or "pip install" in no_pair_text():
        raise ConfigError(no_pair_text())
    print(no_pair_text(), file=sys.stderr)
    if not typer.confirm("try that now?", default=True, err=True):
        raise typer.Exit(2)
    return PairChoice(EMBEDDED)


def _reader(session: ChatSession) -> MessageReader:
    from specollama.cli.chat.line_reader import LineReader, TerminalReader
    from specollama.cli.chat.pair_choice import pair_names
    from specollama.config.paths import data_folder
    from specollama.errors import RunError

    if not session.terminal:
        return LineReader()

    def known() -> tuple[list[str], list[str]]:
        try:
            found = session.store.summaries() if session.store else []
        except RunError:
            found = []  # told when the conversation is kept
        return pair_names(session.config), [each.name or str(each.id) for each in found]

    reader = TerminalReader(session.runner, data_folder() / "typed", known, session.status)
    reader.set_history(session.history)
    return reader


def _hold(session: ChatSession) -> None:
    """One message after another."""
    from specollama.cli.chat.command_handlers import resumed_text

    if session.history_so_far.turns:
        session.say(resumed_text(session.saved))
        if session.terminal:
            session.take_back_unanswered()
    elif session.terminal:
        session.say(f"{session.status()} · /help lists the commands, Ctrl-D leaves")
    while True:
        begun, session.prefilled_input = session.prefilled_input, ""
        try:
            _take(session, session.reader.read(begun))
        except EOFError:
            return
        except KeyboardInterrupt:  # outside a reply
            session.say("\n/bye or Ctrl-D leaves" if not session.terminal else "/bye or Ctrl-D leaves")


def _take(session: ChatSession, text: str) -> None:
    """A command, or a message."""
    from specollama.cli.chat.command_handlers import run_command
    from specollama.cli.chat.commands import CommandFault, parse_command
    from specollama.cli.chat.input_parsing import extract_images, is_command, strip_quotes

    try:
        if is_command(text):
            run_command(session, parse_command(text))
        elif (said := strip_quotes(text)).strip():
            message = extract_images(said)
            for file in message.files:
                session.say(f"with the image {file}")
            session.ask(message.text, message.images)
    except CommandFault as fault:
        session.failed |= not is_command(text)
        session.say(str(fault))
