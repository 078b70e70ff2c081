"""Table of the commands, in the order and the panels in which `specollama --help` lists them.

The table repeats the first paragraph of each command's help, so that `--help` imports no command. A group of the class
`LazyGroup` imports a command's module when that command is called.
"""

from __future__ import annotations

from importlib import import_module
from typing import Any, NamedTuple

import typer
import typer.main
from typer.core import TyperCommand, TyperGroup


class Entry(NamedTuple):
    """One command.

    `module` is the module's name in `specollama.cli.commands`. `attribute` names the command's function there, or its
    `typer.Typer` where the command has commands of its own. `help` is the first paragraph of the command's help.
    """

    module: str
    attribute: str
    panel: str
    help: str


USE, REVIEW, SET_UP, MEASURE = "Use", "Review", "Set up", "Measure"

COMMANDS = {
    "run": Entry("run", "run", USE, "Answer one prompt: the reply goes to stdout, everything else to stderr."),
    "chat": Entry("chat", "chat", USE, "Chat with a pair: the conversation is kept, and Ctrl-C stops a reply only."),
    "chats": Entry("chats", "app", USE, "The conversations that `specollama chat` kept."),
    "serve": Entry(
        "serve",
        "serve",
        USE,
        "Serve Ollama's and OpenAI's APIs: requests for a pair, or for its target, are speculated; "
        "all else is passed on.",
    ),
    "batch": Entry(
        "batch",
        "batch",
        REVIEW,
        "Answer many prompts, each once, and keep the replies for `specollama review`. Nothing is sent anywhere.",
    ),
    "review": Entry(
        "review",
        "review",
        REVIEW,
        "Approve, reject, edit or regenerate replies, one after another; or check the log that says who did.",
    ),
    "release": Entry(
        "release",
        "release",
        REVIEW,
        "Let out what was approved, in the form that was approved, and each item once.",
    ),
    "pairs": Entry(
        "pairs",
        "app",
        SET_UP,
        "Show the pairs of the configuration (`show` may be left out), how well they draft, or suggest others.",
    ),
    "doctor": Entry(
        "doctor",
        "doctor",
        SET_UP,
        "Look at servers and pairs, load and time the models, and say what to change. Changes nothing itself.",
    ),
    "tune": Entry(
        "tune",
        "tune",
        SET_UP,
        "Measure a pair for a minute, and write its route and limits into the configuration; say what changed.",
    ),
    "native": Entry(
        "native",
        "native",
        SET_UP,
        "Start a second Ollama that speculates by itself, watch it, and stop it with Ctrl-C (or SIGTERM, SIGHUP).",
    ),
    "export": Entry(
        "export",
        "export",
        SET_UP,
        "Write the command line, and the files if any, with which an engine runs the pair by itself.",
    ),
    "embedded": Entry(
        "embedded",
        "app",
        SET_UP,
        "An Ollama-compatible server in process, with a small model to try everything on.",
    ),
    "trust": Entry(
        "trust", "trust", SET_UP, "Let the specollama.toml of a folder be used there, as it is now. Read it first."
    ),
    "demo": Entry(
        "demo",
        "demo",
        MEASURE,
        "Show speculation at work: a draft and a target of the embedded engine, beside plain.",
    ),
    "bench": Entry(
        "bench",
        "bench",
        MEASURE,
        "Measure a pair: speed and texts beside the target alone, at temperature 0, in one run.",
    ),
    "trace": Entry(
        "trace",
        "trace",
        MEASURE,
        "Show a traced reply as an HTML page: each token with its origin and the target's view, the rounds over time.",
    ),
}


class LazyGroup(TyperGroup):
    """Group whose commands are those of the table. Calling one, or completing its options, imports its module."""

    def __init__(self, **settings: Any) -> None:
        super().__init__(**settings)
        for name, entry in COMMANDS.items():
            self.add_command(TyperCommand(name, callback=None, help=entry.help, rich_help_panel=entry.panel))

    def resolve_command(self, ctx: Any, args: list[str]) -> Any:
        if args and args[0] in COMMANDS:
            self.load(args[0])
        return super().resolve_command(ctx, args)

    def load(self, name: str) -> Any:
        """The command itself: its module is imported, and it replaces the entry of the table in this group."""
        entry = COMMANDS[name]
        command = _build(name, getattr(import_module(f"specollama.cli.commands.{entry.module}"), entry.attribute))
        command.rich_help_panel = entry.panel
        self.add_command(command, name)
        return command


def _build(name: str, source: Any) -> Any:
    """The command of a function, or the group of a `typer.Typer`."""
    app = source
    if not isinstance(source, typer.Typer):
        app = typer.Typer(add_completion=False)
        app.command(name)(source)
    built = typer.main.get_command(app)
    built.name = name
    return built
