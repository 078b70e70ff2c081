"""What a line that begins with a slash means."""

from __future__ import annotations

import pytest

from specollama.cli.chat.command_handlers import _SETTERS, HANDLERS
from specollama.cli.chat.commands import COMMANDS, SETTINGS, CommandFault, help_text, parse_command, parse_setting


@pytest.mark.parametrize(
    ("line", "name", "rest"),
    [
        ("/help", "help", ""),
        ("/?", "help", ""),
        ("/exit", "bye", ""),
        ("/pair  coder ", "pair", "coder"),
        ("/set parameter stop a b", "set", "parameter stop a b"),
    ],
)
def test_a_command_and_what_follows_it(line: str, name: str, rest: str) -> None:
    call = parse_command(line)
    assert (call.command.name, call.rest) == (name, rest)


@pytest.mark.parametrize(
    ("line", "says"),
    [
        ("/sing now", "unknown command /sing; /help lists them"),
        ("/rout lanes", "unknown command /rout, did you mean /route? /help lists them"),
        ("/", "unknown command /; /help lists them"),
    ],
)
def test_a_command_that_is_not_there_is_named(line: str, says: str) -> None:
    with pytest.raises(CommandFault, match=f"^{says.replace('?', '[?]')}$"):
        parse_command(line)


@pytest.mark.parametrize(
    ("rest", "name", "value"),
    [
        ("verbose", "verbose", "on"),
        ("quiet", "verbose", "off"),
        ("nothink", "think", "off"),
        ("think high", "think", "high"),
        ("nowordwrap", "wordwrap", "off"),
        ("system Be brief.  Be kind.", "system", "Be brief.  Be kind."),
        ('format {"type": "object"}', "format", '{"type": "object"}'),
    ],
)
def test_a_setting_and_its_value_in_our_words_and_in_those_of_ollama(rest: str, name: str, value: str) -> None:
    setting, given = parse_setting(rest)
    assert (setting.name, given) == (name, value)


@pytest.mark.parametrize(
    ("rest", "says"),
    [
        ("", "/set WHAT: what can be set: parameter, system"),
        ("colour red", "/set colour: what can be set: parameter, system"),
        ("verbose loud", "/set verbose loud: must be on|off"),
        ("theme", "/set theme: must be default|colourblind|mono"),
    ],
)
def test_a_setting_that_can_not_be_is_told_with_what_can(rest: str, says: str) -> None:
    with pytest.raises(CommandFault) as fault:
        parse_setting(rest)
    assert str(fault.value).startswith(says)


def test_each_command_and_each_setting_is_carried_out_by_something_and_helped_with() -> None:
    assert HANDLERS.keys() == COMMANDS.keys()
    assert _SETTERS.keys() == SETTINGS.keys()
    text = help_text()
    assert all(f"/{name}" in text for name in COMMANDS)
    assert all(f"/set {name}" in help_text("set") for name in SETTINGS)
    assert max(len(line) for line in (text + "\n" + help_text("set")).splitlines()) <= 80
