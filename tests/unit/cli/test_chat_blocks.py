"""Markdown that comes in pieces: what is shown once can't change any more."""

from __future__ import annotations

import io

import pytest
from hypothesis import given
from hypothesis import strategies as st
from rich.console import Console
from rich.markdown import Markdown

from specollama.cli.chat.markdown_stream import LineBlocks, MarkdownBlocks, settled_length
from specollama.cli.terminal.escaping import escape_controls
from specollama.spec_decode.events import Text
from specollama.spec_decode.types import Origin

DOCUMENT = """# Title

A paragraph of
two lines.

```python
a = 1

b = 2
```

1. one
2. two

   still two

- [x](http://a.b)

| a | b |
|---|---|
| 1 | 2 |

> quoted

The end."""


def printed(*shown: object) -> list[str]:
    """Lines on a terminal of 40 columns, without the empty ones."""
    out = io.StringIO()
    console = Console(file=out, width=40, color_system=None)
    for each in shown:
        console.print(each)
    return [line.rstrip() for line in out.getvalue().splitlines() if line.strip()]


@pytest.mark.parametrize(
    ("text", "whole"),
    [
        ("A paragraph", ""),
        ("A paragraph.\n\n", ""),  # a table or a list may be what it belongs to, for all that is known
        ("One.\n\nTwo\n", "One.\n\n"),
        ("- one\n*", ""),  # which may go on as `*two*`, a line of the same item
        ("```\na\n\nb\n", ""),
        ("```\na\n```\nafter\n", "```\na\n```\n"),
        ("1. one\n\n2. two\n\n", ""),
        ("1. one\n\nthen\n", "1. one\n\n"),
        ("Title\n===\ntext\n", "Title\n===\n"),
        ("a\u2028b\n\nc\n", "a\u2028b\n\n"),
    ],
)
def test_what_is_whole_ends_where_the_last_block_begins(text: str, whole: str) -> None:
    assert text[: settled_length(text)] == whole


@pytest.mark.parametrize("size", [1, 1000])
def test_nothing_of_a_page_in_html_is_left_out(size: int) -> None:
    page = "<div>\n<p>One</p>\n</div>\n\n<!-- two -->\n\nand <b>three</b>"
    blocks = MarkdownBlocks()
    pieces = [page[place : place + size] for place in range(0, len(page), size)]
    shown = [whole for piece in pieces if (whole := blocks.feed(Text(piece, Origin.PLAIN)))]
    assert " ".join(printed(*shown, blocks.rest())) == " ".join(page.split())


@pytest.mark.parametrize("size", [1, 3, 7, 1000])
def test_a_document_that_comes_in_pieces_looks_like_one_that_came_at_once(size: int) -> None:
    blocks = MarkdownBlocks()
    pieces = [DOCUMENT[place : place + size] for place in range(0, len(DOCUMENT), size)]
    shown = [whole for piece in pieces if (whole := blocks.feed(Text(piece, Origin.PLAIN)))]
    assert len(shown) >= 6 or size == 1000
    assert printed(*shown, blocks.rest()) == printed(Markdown(DOCUMENT, hyperlinks=False))
    assert blocks.rest() is None


@given(
    st.lists(st.sampled_from(["a", " ", "\n", "\n\n", "```", "*", "- ", "1. ", "# ", "|", "> ", "    "]), max_size=40)
)
def test_what_is_whole_stays_whole_whatever_follows(parts: list[str]) -> None:
    text, before = "", 0
    for part in parts:
        text += part
        now = settled_length(text)
        assert now >= before
        before = now


def test_the_tail_is_shown_without_a_fence_that_is_just_beginning() -> None:
    blocks = MarkdownBlocks()
    blocks.feed(Text("Code:\n``", Origin.PLAIN))
    assert printed(blocks.tail()) == ["Code:"]


def test_control_characters_of_a_model_steer_no_terminal() -> None:
    assert escape_controls("a\x1b[2J\x07\tb\n\x9bc\x7f") == "a␛[2J␇\tb\n\ufffdc␡"
    assert escape_controls("a\u202eb\u2066c\u2028d") == "a\\u202eb\\u2066c\\u2028d"
    kept = "👩\u200d🚀 می\u200cخواهم ש\u200f!"
    assert escape_controls(kept) == kept
    blocks = LineBlocks()
    blocks.feed(Text("\x1b]52;c;eA==\x07", Origin.PLAIN))
    assert printed(blocks.rest()) == ["␛]52;c;eA==␇"]


def test_lines_keep_each_tokens_own_colour() -> None:
    out = io.StringIO()
    console = Console(file=out, width=40, force_terminal=True, color_system="standard")
    blocks = LineBlocks({"accepted": "green", "recovered": "red"})
    first = blocks.feed(Text("one", Origin.ACCEPTED))
    second = blocks.feed(Text(" two\nthree", Origin.RECOVERED))
    assert first is None
    console.print(second)
    console.print(blocks.rest())
    assert out.getvalue() == "\x1b[32mone\x1b[0m\x1b[31m two\x1b[0m\n\x1b[31mthree\x1b[0m\n"
