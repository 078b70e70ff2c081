"""Thinking told apart from the answer: the pieces in which a reply arrives make no difference."""

from __future__ import annotations

from collections.abc import Iterable

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from specollama.pairs.thinking import ThinkingSplitter
from tests.support.draws import examples


def split(pieces: Iterable[str], *, inside: bool = False) -> tuple[str, str]:
    """Thinking and answer of a reply."""
    splitter = ThinkingSplitter(inside)
    told = [each for piece in pieces for each in splitter.feed(piece)]
    told += splitter.end()
    assert all(text for text, _ in told), "nothing empty is shown"
    places = [thinking for _, thinking in told]
    assert places == sorted(places, reverse=True), "no thinking after the answer began"
    return "".join(text for text, thinking in told if thinking), "".join(
        text for text, thinking in told if not thinking
    )


@pytest.mark.parametrize(
    ("reply", "thinking", "answer"),
    [
        ("", "", ""),
        ("Paris.", "", "Paris."),
        ("  Paris. ", "", "  Paris. "),
        ("<think>France</think>Paris.", "France", "Paris."),
        ("\n <think>\n France?\n Paris\n </think>\n\n Paris. ", "France?\n Paris", "Paris. "),
        ("<think></think>Paris.", "", "Paris."),
        ("<think>\n\n</think>\n\nParis.", "", "Paris."),
        ("<think>France", "France", ""),
        ("<think>France \n", "France", ""),
        ("<think>France </thi", "France </thi", ""),
        ("<think>a < b </ c</think>d", "a < b </ c", "d"),
        ("<think>a<think>b</think>c</think>d", "a<think>b", "c</think>d"),
        ("Paris. <think>no thinking</think>", "", "Paris. <think>no thinking</think>"),
        ("<thin", "", "<thin"),
        ("<thinking>", "", "<thinking>"),
        ("<think", "", "<think"),
        (" ", "", " "),
        ("<think>", "", ""),
        ("<think>  ", "", ""),
        ("<think>a</think>", "a", ""),
        ("<think>a</think> \n", "a", ""),
        ("</think>Paris.", "", "</think>Paris."),
    ],
)
def test_a_reply_is_split(reply: str, thinking: str, answer: str) -> None:
    assert split([reply]) == split(reply) == (thinking, answer)


@pytest.mark.parametrize(
    ("reply", "thinking", "answer"),
    [
        ("France</think>Paris.", "France", "Paris."),
        ("\nFrance\n</think>\n\nParis.", "France", "Paris."),
        ("</think>Paris.", "", "Paris."),
        ("France", "France", ""),
        ("<think>France</think>Paris.", "<think>France", "Paris."),
    ],
)
def test_a_reply_to_a_prompt_that_opened_the_thinking_begins_inside(reply: str, thinking: str, answer: str) -> None:
    assert split([reply], inside=True) == split(reply, inside=True) == (thinking, answer)


def test_what_is_certain_is_shown_at_once() -> None:
    splitter = ThinkingSplitter()
    shown = [list(splitter.feed(piece)) for piece in ["<think>", "Fr", "ance </", "b", "</think", ">", "\nPa", "ris"]]
    assert shown == [
        [],
        [("Fr", True)],
        [("ance", True)],
        [(" </b", True)],
        [],
        [],
        [("Pa", False)],
        [("ris", False)],
    ]


PARTS = st.sampled_from(
    ["<think>", "</think>", "<", "</", "think", ">", " ", "\n", "a", "東", "</thi", "nk>", "\u3000"]
)


@examples(100)
@given(parts=st.lists(PARTS, max_size=14), cuts=st.sets(st.integers(0, 80)), inside=st.booleans())
def test_any_pieces_give_the_split_of_the_whole_text(parts: list[str], cuts: set[int], inside: bool) -> None:
    text = "".join(parts)
    ends = [*sorted(cut for cut in cuts if cut < len(text)), len(text)]
    pieces = [text[begin:end] for begin, end in zip([0, *ends], ends, strict=False)]
    assert "".join(pieces) == text
    assert split(pieces, inside=inside) == split([text], inside=inside)


@examples(100)
@given(parts=st.lists(PARTS, max_size=14), inside=st.booleans())
def test_nothing_but_one_pair_of_tags_and_white_space_is_left_out(parts: list[str], inside: bool) -> None:
    text = "".join(parts)
    thinking, answer = split(parts, inside=inside)

    def letters(written: str) -> str:
        return "".join(written.split())

    # A tag with white space within isn't one, and would be one without.
    assume(all(letters(text).count(tag) == text.count(tag) for tag in ("<think>", "</think>")))

    rest = letters(text)
    if not inside and rest.startswith("<think>"):
        rest, inside = rest.removeprefix("<think>"), True
    if inside:
        thought, _, rest = rest.partition("</think>") if "</think>" in text else (rest, "", "")
        assert letters(thinking) == thought
    assert letters(answer) == rest
