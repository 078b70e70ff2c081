"""The commands, in the groups in which `--help` shows them.

A command's module is imported when that command is called, so `specollama --help` loads none of them.
"""

from __future__ import annotations

from importlib import import_module
from typing import Any, NamedTuple

import typer
import typer.main
from typer.core import TyperCommand, TyperGroup

USE, SET_UP, MEASURE, REVIEW = "Use", "Set up", "Measure", "Review"


class Entry(NamedTuple):
    """A command: the function or the typer app that carries it out, as `module:name` in `cli.commands`; its help."""

    panel: str
    place: str
    help: str


COMMANDS = {
    "run": Entry(USE, "run:run", "Answer one prompt: the reply goes to stdout, everything else to stderr."),
    "chat": Entry(USE, "chat:chat", "Chat with a pair: the conversation is kept, and Ctrl-C stops a reply only."),
    "serve": Entry(
        USE,
        "serve:serve",
        "Serve Ollama's and OpenAI's APIs: requests for a pair, or for its target, are speculated; "
        "all else is passed on.",
    ),
    "chats": Entry(USE, "chats:app", "The conversations that `specollama chat` kept."),
    "init": Entry(
        SET_UP,
        "init:init",
        "Set up a first pair: find the installed models that make one, write the configuration, try one prompt both "
        "ways.",
    ),
    "pairs": Entry(
        SET_UP,
        "pairs:app",
        "Show the pairs of the configuration (`show` may be left out), how well they draft, or suggest others.",
    ),
    "doctor": Entry(
        SET_UP,
        "doctor:doctor",
        "Look at servers and pairs, load and time the models, and say what to change. Changes nothing itself.",
    ),
    "tune": Entry(
        SET_UP,
        "tune:tune",
        "Measure a pair for a minute, and write its route and limits into the configuration; say what changed.",
    ),
    "trust": Entry(
        SET_UP, "trust:trust", "Let the specollama.toml of a folder be used there, as it is now. Read it first."
    ),
    "native": Entry(
        SET_UP,
        "native:native",
        "Start a second Ollama that speculates by itself, watch it, and stop it with Ctrl-C (or SIGTERM, SIGHUP).",
    ),
    "export": Entry(
        SET_UP,
        "export:export",
        "Write the command line, and the files if any, with which an engine runs the pair by itself.",
    ),
    "data": Entry(
        SET_UP, "data:data", "Show what specollama keeps on this disk, where and how large, or delete a kind of it."
    ),
    "embedded": Entry(
        SET_UP, "embedded:app", "An Ollama-compatible server in process, with a small model to try everything on."
    ),
    "demo": Entry(
        MEASURE, "demo:demo", "Show speculation at work: a draft and a target of the embedded engine, beside plain."
    ),
    "bench": Entry(
        MEASURE,
        "bench:bench",
        "Measure a pair: speed and texts beside the target alone, in one run.",
    ),
    "trace": Entry(
        MEASURE,
        "trace:trace",
        "Show a traced reply as an HTML page: each token with its origin and the target's view, the rounds over time.",
    ),
    "batch": Entry(
        REVIEW,
        "batch:batch",
        "Answer many prompts, each once, and keep the replies for `specollama review`. Nothing is sent anywhere.",
    ),
    "review": Entry(
        REVIEW,
        "review:review",
        "Approve, reject, edit or regenerate replies, one after another; or check the log that says who did.",
    ),
    "release": Entry(
        REVIEW, "release:release", "Let out what was approved, in the form that was approved, and each item once."
    ),
}


class LazyGroup(TyperGroup):
    """A group that knows its commands by the table, and imports one when it is called."""

    def __init__(self, *arguments: Any, **options: Any) -> None:
        super().__init__(*arguments, **options)
        for name, entry in COMMANDS.items():
            self.add_command(TyperCommand(name, help=entry.help, callback=None, rich_help_panel=entry.panel))

    def resolve_command(self, ctx: Any, args: list[str]) -> Any:
        if args and args[0] in COMMANDS:
            self.add_command(load(args[0]))
        return super().resolve_command(ctx, args)


def load(name: str) -> Any:
    """A command with its options, its module imported. Raises KeyError for a name that isn't in the table."""
    module, _, attribute = COMMANDS[name].place.partition(":")
    command = getattr(import_module(f"specollama.cli.commands.{module}"), attribute)
    if not isinstance(command, typer.Typer):
        alone = typer.Typer(add_completion=False, pretty_exceptions_enable=False)
        alone.command(name)(command)
        command = alone
    loaded = typer.main.get_command(command)
    loaded.name = name
    return loaded
