"""What the README shows can be run: its commands parse, its configuration loads, its pictures exist."""

from __future__ import annotations

import json
import os
import re
import shlex
import subprocess
import sys
import textwrap
from pathlib import Path

import click
import pytest
import typer

from specollama.cli import app
from specollama.config import load_config
from specollama.review.release import object_of
from specollama.review.state import Item

sys.path.append(str(Path(__file__).parent / "core"))  # review_runs.py

from review_runs import answered

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


def test_the_script_that_the_readme_hands_items_to_sends_their_texts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert ["release", "RUN", "--exec", "python send.py"] in commands()
    [script] = re.findall(r"A `send.py` may be:\n\n  ```python\n(.*?)  ```", README, re.DOTALL)
    (tmp_path / "send.py").write_text(textwrap.dedent(script))
    (tmp_path / "mail").write_text('#!/bin/sh\necho "$@" > arguments\ncat > text\n')
    (tmp_path / "mail").chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path), prepend=os.pathsep)
    item = json.dumps(object_of(Item("a", answered("a", "Blue."), text="Grün.\n")))
    subprocess.run([sys.executable, "send.py"], input=item.encode(), cwd=tmp_path, check=True)
    assert (tmp_path / "arguments").read_text() == "-s Your question -- a@example.org\n"
    assert (tmp_path / "text").read_text(encoding="utf-8") == "Grün.\n"


@pytest.mark.parametrize("script", ["scripts/demo", "scripts/test"])
def test_the_two_commands_of_the_readme_are_executable_scripts(script: str) -> None:
    assert f"```sh\n{script}\n```" in README
    assert (ROOT / script).stat().st_mode & 0o111
