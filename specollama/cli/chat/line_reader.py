"""Where a chat's lines come from: a person at a terminal, or a pipe."""

from __future__ import annotations

import asyncio
import os
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Protocol

from prompt_toolkit import PromptSession
from prompt_toolkit.completion import CompleteEvent, Completer, Completion
from prompt_toolkit.document import Document
from prompt_toolkit.filters import is_searching
from prompt_toolkit.formatted_text import FormattedText
from prompt_toolkit.history import FileHistory
from prompt_toolkit.key_binding import KeyBindings
from prompt_toolkit.key_binding.key_processor import KeyPressEvent
from prompt_toolkit.output import ColorDepth

from specollama.cli.chat.input_parsing import completions, is_unfinished
from specollama.cli.terminal.standard_streams import decode_terminal_text, piped_text

PROMPT, MORE = ">>> ", "... "


class MessageReader(Protocol):
    """Gives one message after another. Raises EOFError at the end, KeyboardInterrupt for a Ctrl-C."""

    def read(self, begun: str = "") -> str:
        """`begun`: what stands there already, to be changed."""
        ...

    def set_history(self, wanted: bool) -> None:
        """Whether what is typed is kept for the next chat."""


class LineReader:
    """Lines of standard input. A prompt is shown to a person, on stderr: the answer alone goes to stdout."""

    def read(self, begun: str = "") -> str:
        text = self._line(PROMPT)
        with suppress(EOFError):  # it ends what was begun, too
            while is_unfinished(text):
                text += "\n" + self._line(MORE)
        return text

    def set_history(self, wanted: bool) -> None: ...

    def _line(self, prompt: str) -> str:
        if sys.stdin is None:
            raise EOFError
        if sys.stdin.isatty():
            print(prompt, end="", file=sys.stderr, flush=True)
        return piped_text(input().removesuffix("\r"))


class TerminalReader:
    """A person at a terminal: history, search, several lines, completion, an editor."""

    def __init__(
        self,
        runner: asyncio.Runner,
        history: Path,
        known: Callable[[], tuple[Sequence[str], Sequence[str]]],
        status: Callable[[], str],
    ) -> None:
        """`known`: names of pairs and of conversations; `status`: the line below; `history`: where lines are kept.

        They are from the first `set_history(True)` on. Where that file can't be written nothing is: the conversations
        beside it can't either then, and that is told.
        """
        self._runner = runner
        self._history = _TypedHistory(history)
        self._session: PromptSession[str] = PromptSession(
            history=self._history,
            completer=_Completions(known),
            complete_while_typing=False,
            key_bindings=_keys(),
            multiline=True,
            prompt_continuation=MORE,
            enable_open_in_editor=True,
            tempfile_suffix=".md",
            bottom_toolbar=lambda: FormattedText([("class:bottom-toolbar.text", status())]) if status() else None,
            color_depth=ColorDepth.DEPTH_1_BIT if os.environ.get("NO_COLOR") else None,
        )

    def read(self, begun: str = "") -> str:
        return decode_terminal_text(self._runner.run(self._session.prompt_async(PROMPT, default=begun)))

    def set_history(self, wanted: bool) -> None:
        self._history.wanted = wanted


@contextmanager
def without_echo() -> Iterator[None]:
    """What is typed while a reply is drawn isn't mixed into it: the next prompt gets it."""
    try:
        import termios
    except ImportError:  # Windows
        yield
        return
    terminal = sys.stdin.fileno()
    before = termios.tcgetattr(terminal)
    quiet = [*before]
    quiet[3] &= ~termios.ECHO
    termios.tcsetattr(terminal, termios.TCSADRAIN, quiet)
    try:
        yield
    finally:
        termios.tcsetattr(terminal, termios.TCSADRAIN, before)


def _keys() -> KeyBindings:
    keys = KeyBindings()

    @keys.add("enter", filter=~is_searching)
    def enter(event: KeyPressEvent) -> None:
        buffer = event.current_buffer
        if is_unfinished(buffer.text):
            buffer.newline(copy_margin=False)
        else:
            buffer.validate_and_handle()

    @keys.add("escape", "enter")
    def newline(event: KeyPressEvent) -> None:
        event.current_buffer.newline(copy_margin=False)

    @keys.add("c-g", filter=~is_searching)
    def edit(event: KeyPressEvent) -> None:
        event.current_buffer.open_in_editor()

    return keys


class _TypedHistory(FileHistory):
    """Input history in a file that only its user can read; it is neither read nor written unless `wanted`."""

    def __init__(self, file: Path) -> None:
        super().__init__(str(file))
        self.file = file
        self.wanted = False

    def load_history_strings(self) -> Iterable[str]:
        with suppress(OSError):
            return list(super().load_history_strings()) if self.wanted else []
        return []

    def store_string(self, string: str) -> None:
        if self.wanted:
            with suppress(OSError):  # as a full disk, which is told of the conversation
                self.file.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
                os.close(os.open(self.file, os.O_CREAT | os.O_RDWR, 0o600))
                super().store_string(string)


class _Completions(Completer):
    def __init__(self, known: Callable[[], tuple[Sequence[str], Sequence[str]]]) -> None:
        self._known = known

    def get_completions(self, document: Document, complete_event: CompleteEvent) -> Iterable[Completion]:
        return self._found(document.text_before_cursor)

    def _found(self, before: str) -> Iterator[Completion]:
        for text, length in completions(before, *self._known()):
            yield Completion(text, start_position=-length)
