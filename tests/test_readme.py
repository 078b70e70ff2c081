"""What the README shows can be run: its commands parse, its configuration loads, its pictures exist."""

from __future__ import annotations

import re
import shlex
from pathlib import Path

import click
import pytest
import typer

from specollama.cli import app
from specollama.config import load_config

ROOT = Path(__file__).parent.parent
README = (ROOT / "README.md").read_text(encoding="utf-8")


def blocks(language: str) -> list[str]:
    return re.findall(rf"^```{language}\n(.*?)^```", README, re.MULTILINE | re.DOTALL)


def commands() -> list[list[str]]:
    lines = [line for block in blocks("sh") for line in block.splitlines()]
    found = [re.search(r"(?:^|\| )specollama (.*)$", line) for line in lines]
    return [shlex.split(match[1], comments=True) for match in found if match]


@pytest.mark.parametrize("words", commands(), ids=" ".join)
def test_each_command_of_the_readme_is_one_that_the_program_takes(words: list[str]) -> None:
    command, context = typer.main.get_command(app), None
    while isinstance(command, click.Group) or hasattr(command, "commands"):
        context = click.Context(command, parent=context)
        name, *words = getattr(command, "completed", list)(words)
        command = command.commands[name]  # type: ignore[union-attr]
    assert command.make_context(command.name, list(words), parent=context).params


def test_the_readme_shows_commands_at_all() -> None:
    assert len(commands()) >= 8


def test_the_configuration_of_the_readme_loads_and_its_default_pair_resolves(tmp_path: Path) -> None:
    [shown] = blocks("toml")
    file = tmp_path / "specollama.toml"
    file.write_text(shown, encoding="utf-8")
    pair = load_config(file).pair(None, {"TOWER_TOKEN": "secret"})
    assert (pair.name, pair.target.endpoint.url) == ("coder", "http://tower:11434")


def test_what_the_readme_links_to_is_there() -> None:
    links = re.findall(r"\]\((?!https?://)([^)#]+)\)", README)
    assert links
    assert [link for link in links if not (ROOT / link).exists()] == []


@pytest.mark.parametrize("script", ["scripts/demo", "scripts/test"])
def test_the_two_commands_of_the_readme_are_executable_scripts(script: str) -> None:
    assert f"```sh\n{script}\n```" in README
    assert (ROOT / script).stat().st_mode & 0o111
