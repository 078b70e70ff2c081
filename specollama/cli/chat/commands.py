"""The chat's commands and settings as data, and the parser of a command line. Pure: handlers are elsewhere."""

from __future__ import annotations

import difflib
from collections.abc import Iterable
from dataclasses import dataclass

from specollama.spec_decode.types import Route

ON_OFF = ("on", "off")


@dataclass(frozen=True, slots=True)
class ChatCommand:
    """`takes`: the arguments as the help shows them; `words`: the arguments that completion offers."""

    name: str
    takes: str
    help: str
    words: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class ChatSetting:
    """Something that `/set` sets. `words`: its values, where they are few."""

    name: str
    takes: str
    help: str
    words: tuple[str, ...] = ()


SETTINGS = {
    setting.name: setting
    for setting in (
        ChatSetting("parameter", "NAME VALUE", "an option: temperature 0.2, num_ctx 8192"),
        ChatSetting("system", "TEXT", "the system message; none without TEXT"),
        ChatSetting("format", "json|SCHEMA|off", "answers in JSON, or by a JSON schema", ("json", "off")),
        ChatSetting(
            "think", "on|off|low|medium|high", "whether a thinking model thinks", (*ON_OFF, "low", "medium", "high")
        ),
        ChatSetting("fold", "on|off", "thinking as one line (/show thinking: all)", ON_OFF),
        ChatSetting("verbose", "on|off", "the counters after each reply", ON_OFF),
        ChatSetting("history", "on|off", "keep the conversation and what you type", ON_OFF),
        ChatSetting("wordwrap", "on|off", "lines broken between words", ON_OFF),
        ChatSetting("markdown", "on|off", "markdown shown as it is meant", ON_OFF),
        ChatSetting("theme", "default|colourblind|mono", "the colours of origins", ("default", "colourblind", "mono")),
    )
}

COMMANDS = {
    command.name: command
    for command in (
        ChatCommand("help", "[COMMAND]", "show this"),
        ChatCommand("set", "WHAT VALUE", "a setting; /help set lists them", tuple(SETTINGS)),
        ChatCommand(
            "show",
            "WHAT",
            "info, system, parameters, pair, stats, thinking",
            ("info", "system", "parameters", "pair", "stats", "thinking"),
        ),
        ChatCommand("stats", "", "show the counters of the last reply"),
        ChatCommand("pair", "[NAME]", "go on with another pair"),
        ChatCommand("route", "[ROUTE]", "how drafts are verified", tuple(Route)),
        ChatCommand("lookahead", "[N|auto]", "tokens to draft in a round; 0: none", ("auto", "0", "4", "8")),
        ChatCommand("origin", "on|off", "colour tokens by origin, in the text as written", ON_OFF),
        ChatCommand("retry", "", "answer the last question anew"),
        ChatCommand("undo", "", "take the last question and its answer back"),
        ChatCommand("edit", "", "write in $EDITOR (Ctrl-G: what is typed there)"),
        ChatCommand("copy", "", "put the last answer on the clipboard"),
        ChatCommand("save", "[NAME]", "keep it under a name; a further name keeps a copy"),
        ChatCommand("load", "NAME", "go on with a kept conversation (name or number)"),
        ChatCommand("list", "[TEXT]", "kept conversations; those in which TEXT was said"),
        ChatCommand("export", "FILE.md|FILE.json", "write the conversation to a file (--force F: over it)"),
        ChatCommand("trace", "[PAGE.html]", "the last reply as a page (--force F: over one)"),
        ChatCommand("clear", "", "forget the conversation so far"),
        ChatCommand("bye", "", "leave (Ctrl-D too)"),
    )
}

ALIASES = {"?": "help", "exit": "bye", "quit": "bye", "new": "clear"}

SET_ALIASES = {
    "quiet": ("verbose", "off"),
    "nothink": ("think", "off"),
    "noformat": ("format", "off"),
    "nohistory": ("history", "off"),
    "nowordwrap": ("wordwrap", "off"),
}
"""Ollama's own words."""

KEYS = (
    ("Ctrl-C", "stop the reply, and keep what was written"),
    ('"""', "begin and end several lines; Alt-Enter adds one"),
    ("Ctrl-R", "search what was typed before"),
    ("a path", "of an image in the message shows it to the model"),
)


class CommandFault(Exception):
    """A line that can't be carried out; its text is fit for the user."""


@dataclass(frozen=True, slots=True)
class CommandCall:
    """A command and its arguments."""

    command: ChatCommand
    rest: str = ""


def parse_command(line: str) -> CommandCall:
    """A line that begins with a slash. Raises CommandFault for a command that isn't there."""
    word, _, rest = line.strip().removeprefix("/").partition(" ")
    name = ALIASES.get(word, word)
    if name not in COMMANDS:
        close = difflib.get_close_matches(name, COMMANDS, n=1)
        meant = f", did you mean /{close[0]}?" if close else ";"
        raise CommandFault(f"unknown command /{word}{meant} /help lists them")
    return CommandCall(COMMANDS[name], rest.strip())


def parse_setting(rest: str) -> tuple[ChatSetting, str]:
    """Parse the arguments of `/set` into a setting and its value. Raises CommandFault."""
    word, _, value = rest.partition(" ")
    if not value.strip() and word in SET_ALIASES:
        word, value = SET_ALIASES[word]
    if word not in SETTINGS:
        raise CommandFault(f"/set {word or 'WHAT'}: what can be set: {', '.join(SETTINGS)}")
    setting, value = SETTINGS[word], value.strip()
    if setting.words == ON_OFF and not value:
        value = "on"
    if setting.words and "SCHEMA" not in setting.takes and value not in setting.words:
        raise CommandFault(f"/set {word}{value and ' ' + value}: must be {setting.takes}")
    return setting, value


def help_text(topic: str = "") -> str:
    """All commands and keys, or one command's. Raises CommandFault for one that isn't there."""
    if topic:
        command = parse_command(topic).command
        lines = [(f"/{command.name} {command.takes}".rstrip(), command.help)]
        if command.name == "set":
            lines += [(f"/set {each.name} {each.takes}", each.help) for each in SETTINGS.values()]
        return _columns(lines)
    commands = [(f"/{command.name} {command.takes}".rstrip(), command.help) for command in COMMANDS.values()]
    return _columns([*commands, *KEYS])


def _columns(lines: Iterable[tuple[str, str]]) -> str:
    lines = list(lines)
    width = max(len(left) for left, _ in lines)
    return "\n".join(f"{left:<{width}}  {right}" for left, right in lines)
