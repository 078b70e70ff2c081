"""What the README and docs/ show can be run: commands parse, configurations load, links and pictures exist."""

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
from specollama.cli.command_table import load
from specollama.config.loading import load_config
from specollama.tools.review.release import item_object
from specollama.tools.review.state import ReviewItem
from tests.support.review_runs import answered

ROOT = Path(__file__).parents[3]
README = (ROOT / "README.md").read_text(encoding="utf-8")
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]
REVIEW = (ROOT / "docs" / "review.md").read_text(encoding="utf-8")


def blocks(language: str) -> list[str]:
    """The fenced blocks of a language, over all pages."""
    found = [
        re.findall(rf"^```{language}\n(.*?)^```", page.read_text("utf-8"), re.MULTILINE | re.DOTALL) for page in PAGES
    ]
    return [block for page in found for block in page]


def _block(language: str) -> re.Pattern[str]:
    return re.compile(rf"^```{language}\n(.*?)^```", re.MULTILINE | re.DOTALL)


def commands() -> list[list[str]]:
    """Each command line of `specollama` on any page, once."""
    lines = dict.fromkeys(line for block in blocks("sh") for line in block.splitlines())
    found = [re.search(r"(?:^|\| )specollama (.*?)(?: > .*)?$", line) for line in lines]
    return [shlex.split(match[1], comments=True) for match in found if match]


@pytest.mark.parametrize("words", commands(), ids=" ".join)
def test_each_command_of_the_pages_is_one_that_the_program_takes(words: list[str]) -> None:
    name, *words = words
    program = typer.main.get_command(app)
    if name.startswith("-"):
        assert name in {option for parameter in program.params for option in parameter.opts}
        return
    command, context = load(name), click.Context(program)
    while hasattr(command, "commands"):
        context = click.Context(command, parent=context)
        name, *words = getattr(command, "completed", list)(words)
        command = command.commands[name]
    assert command.make_context(command.name, list(words), parent=context).params


def test_the_pages_show_commands_at_all() -> None:
    assert len(commands()) >= 20


def test_the_readme_has_at_most_150_lines() -> None:
    assert len(README.splitlines()) <= 150


@pytest.mark.parametrize("shown", blocks("toml"), ids=range(len(blocks("toml"))))
def test_each_configuration_of_the_pages_loads_and_its_default_pair_resolves(shown: str, tmp_path: Path) -> None:
    file = tmp_path / "specollama.toml"
    file.write_text(shown, encoding="utf-8")
    pair = load_config(file).pair(None, {"TOWER_TOKEN": "secret"})
    assert (pair.name, pair.target.endpoint.url) == ("coder", "http://tower:11434")


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_what_a_page_links_to_is_there(page: Path) -> None:
    links = re.findall(r"\]\((?!https?://)([^)#]+)(?:#[^)]*)?\)", page.read_text("utf-8"))
    assert [link for link in links if not (page.parent / link).exists()] == []


def test_each_page_is_linked_from_the_readme_or_from_another_page() -> None:
    linked = {
        (page.parent / link).resolve()
        for page in PAGES
        for link in re.findall(r"\]\(([^):#]+\.md)", page.read_text("utf-8"))
    }
    assert [page for page in PAGES[1:] if page not in linked] == []


def test_the_script_that_the_readme_hands_items_to_sends_their_texts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert ["release", "RUN", "--exec", "python send.py"] in commands()
    [script] = re.findall(r"A `send.py` may be:\n\n  ```python\n(.*?)  ```", REVIEW, re.DOTALL)
    (tmp_path / "send.py").write_text(textwrap.dedent(script))
    (tmp_path / "mail").write_text('#!/bin/sh\necho "$@" > arguments\ncat > text\n')
    (tmp_path / "mail").chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path), prepend=os.pathsep)
    item = json.dumps(item_object(ReviewItem("a", answered("a", "Blue."), text="Grün.\n")))
    subprocess.run([sys.executable, "send.py"], input=item.encode(), cwd=tmp_path, check=True)
    assert (tmp_path / "arguments").read_text() == "-s Your question -- a@example.org\n"
    assert (tmp_path / "text").read_text(encoding="utf-8") == "Grün.\n"


@pytest.mark.parametrize("script", ["scripts/demo", "scripts/test"])
def test_the_two_commands_of_the_readme_are_executable_scripts(script: str) -> None:
    assert f"```sh\n{script}\n```" in README
    assert (ROOT / script).stat().st_mode & 0o111
