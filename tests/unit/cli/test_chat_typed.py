"""What was typed: several lines, images, and what could come next."""

from __future__ import annotations

from pathlib import Path

import pytest
from typer.testing import CliRunner

from specollama.cli import app
from specollama.cli.chat.commands import CommandFault
from specollama.cli.chat.input_parsing import completions, extract_images, is_command, is_unfinished, strip_quotes
from specollama.errors import UsageError


@pytest.mark.parametrize(
    ("text", "open_"),
    [
        *(('"""', True), ('"""a\nb', True), ('"""a\nb"""', False), ('""""""', False), ('say """', False), ("a", False)),
        *(('/set system """a', True), ('/set system """a\nb"""', False), ("/set system a", False)),
    ],
)
def test_three_quotes_begin_several_lines_and_three_end_them(text: str, open_: bool) -> None:
    assert is_unfinished(text) is open_


@pytest.mark.parametrize(
    ("text", "meant"),
    [
        *(('"""\na\n  b\n"""', "a\n  b"), ('"""a"""', "a"), ('a """b"""', 'a """b"""'), ("  a  ", "a")),
        *(('"""a\nb', "a\nb"), ('""""""', "")),
    ],
)
def test_the_quotes_are_no_part_of_the_message(text: str, meant: str) -> None:
    assert strip_quotes(text) == meant


def test_an_images_path_is_taken_out_of_the_message(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "red.png").write_bytes(b"red")
    (tmp_path / "a b.JPG").write_bytes(b"ab")
    message = extract_images(f"What is ./red.png beside {tmp_path}/a\\ b.JPG or 'a b.JPG'?")
    assert message.text == "What is beside or ?"
    assert message.images == ["cmVk", "YWI=", "YWI="]


@pytest.mark.parametrize(
    ("text", "left", "files"),
    [
        ("What is in ./cat.png?", "What is in ?", ["cat.png"]),
        ("./cat.png, ./dog.png", ", ", ["cat.png", "dog.png"]),
        ("Look (./cat.png).", "Look ().", ["cat.png"]),
        ("Both (see [cat.png] and dog.png)!", "Both (see [] and )!", ["cat.png", "dog.png"]),
        ("What's in cat.png and what's in dog.png", "What's in and what's in", ["cat.png", "dog.png"]),
        ("'tis cat.png, 'tis 'my cat.png'.", "'tis , 'tis .", ["cat.png", "my cat.png"]),
        ('("my cat.png","dog.png")', "(,)", ["my cat.png", "dog.png"]),
        ("a(1).png or (a(1).png)", "or ()", ["a(1).png", "a(1).png"]),
        ("The dogs' dog.png: is it the cats' too?", "The dogs' : is it the cats' too?", ["dog.png"]),
    ],
)
def test_an_image_is_found_in_a_sentence(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, text: str, left: str, files: list[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    for name in ("cat.png", "dog.png", "my cat.png", "a(1).png"):
        (tmp_path / name).touch()
    message = extract_images(text)
    assert (message.text, message.files) == (left.strip(), files)


@pytest.mark.parametrize(
    "text", ["draw me a cat.png", "it's 5 o'clock", 'print("a")', "http://a.b/c.png", "'\x00.png'"]
)
def test_what_names_no_image_stays_as_it_was_typed(text: str) -> None:
    assert extract_images(text).text == text
    assert extract_images(text).images == []


def test_an_image_that_is_too_large_is_refused(tmp_path: Path) -> None:
    with (tmp_path / "big.png").open("wb") as file:
        file.truncate(101 * 2**20)
    with pytest.raises(CommandFault, match=r"big\.png: larger than 100 MB"):
        extract_images(f"{tmp_path}/big.png")


@pytest.mark.parametrize("command", [["run", "Hi."], ["chat"]])
def test_an_image_without_an_end_is_refused_on_the_command_line_too(command: list[str]) -> None:
    pair = ["--target", "t@http://127.0.0.1:9", "--draft", "d@http://127.0.0.1:9"]
    fault = CliRunner().invoke(app, [*command, *pair, "--image", "/dev/zero"], input="").exception
    assert isinstance(fault, UsageError)
    assert str(fault) == "--image /dev/zero: larger than 100 MB"


def test_a_path_at_the_beginning_is_no_command(tmp_path: Path) -> None:
    (tmp_path / "red.png").write_bytes(b"red")
    assert is_command("/help me")
    assert is_command("/sing")
    assert not is_command(f"{tmp_path}/red.png what is this?")
    assert not is_command("/usr/bin is a folder")
    assert not is_command("no /help")


@pytest.mark.parametrize(
    ("before", "offered"),
    [
        ("/sh", ["/show"]),
        ("/show s", ["system", "stats"]),
        ("/pair co", ["coder"]),
        ("/load t", ["tale"]),
        ("/set w", ["wordwrap"]),
        ("/set wordwrap ", ["on", "off"]),
        ("/set parameter top_", ["top_k", "top_p"]),
        ("several\n/sh", []),
        ("/nothing x", []),
        ("hello", []),
    ],
)
def test_what_could_come_next(before: str, offered: list[str]) -> None:
    assert [text for text, _ in completions(before, ["coder", "prose"], ["tale", "7"])] == offered


def test_files_are_completed_with_their_spaces_escaped(tmp_path: Path) -> None:
    (tmp_path / "a b.png").touch()
    (tmp_path / "a c").mkdir()
    word = f"{tmp_path}/a"
    offered = [(f"{tmp_path}/a\\ b.png", len(word)), (f"{tmp_path}/a\\ c/", len(word))]
    assert list(completions(f"look at {word}", [], [])) == offered
    assert list(completions(word, [], [])) == offered
