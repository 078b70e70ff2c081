"""Prompt lookup: what followed the same words before."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from specollama.backends.prompt_lookup import (
    MAX_NGRAM,
    CopyCursor,
    LookupDrafter,
    NgramIndex,
    TextLookupDrafter,
    match_confidence,
)


def index(tokens: list[int]) -> NgramIndex:
    made = NgramIndex()
    for token in tokens:
        made.append(token)
    return made


def longest(tokens: list[int]) -> int:
    """The length of the longest ending that occurs earlier, by looking everywhere."""
    for length in range(len(tokens) - 1, 0, -1):
        ending = tokens[-length:]
        if any(tokens[start : start + length] == ending for start in range(len(tokens) - length)):
            return length
    return 0


@given(st.lists(st.integers(0, 3), max_size=40))
def test_the_longest_ending_that_was_seen_before_is_found(tokens: list[int]) -> None:
    place, matched = index(tokens).find()
    found = longest(tokens)
    assert min(matched, MAX_NGRAM) == min(found, MAX_NGRAM)
    if matched:
        assert tokens[place - matched : place] == tokens[len(tokens) - matched :]
        assert place < len(tokens)


def test_the_latest_of_equal_places_is_taken() -> None:
    assert index([1, 2, 9, 1, 2, 8, 1, 2]).find() == (5, 2)


def test_nothing_is_found_where_nothing_was_said_twice() -> None:
    assert index([1, 2, 3]).find() == (0, 0)
    assert index([]).find() == (0, 0)


async def proposal(tokens: list[int], count: int) -> list[int]:
    draft = await LookupDrafter(lambda text: tokens, lambda token: "" if token == 0 else f"<{token}>").propose(
        "", count
    )
    return [token.id or 0 for token in draft.tokens]


async def test_it_proposes_what_followed() -> None:
    assert await proposal([5, 6, 7, 8, 9, 5, 6, 7], 2) == [8, 9]
    assert await proposal([1, 2, 3], 4) == []


async def test_what_repeats_itself_is_taken_to_go_on() -> None:
    assert await proposal([1, 2, 1, 2, 1, 2], 5) == [1, 2, 1, 2, 1]


async def test_a_token_without_text_ends_a_proposal() -> None:
    assert await proposal([5, 6, 7, 0, 9, 5, 6, 7], 4) == []


async def test_copying_goes_on_past_a_word_that_was_changed() -> None:
    said = list(range(10, 30))
    assert await proposal([*said, *said[:8], 99], 3) == said[9:12]


async def test_it_is_surer_the_longer_the_match() -> None:
    short = await LookupDrafter(lambda text: [1, 2, 3, 1], str).propose("", 2)
    long = await LookupDrafter(lambda text: [1, 2, 3, 4, 5, 6, 1, 2, 3, 4], str).propose("", 2)
    assert short.confidence == (match_confidence(1), match_confidence(2))
    assert long.confidence == (match_confidence(4), match_confidence(5))


def test_a_change_leaves_little_of_a_streak() -> None:
    made, copying = NgramIndex(), CopyCursor()
    for token in [*range(20), *range(10)]:
        made.append(token)
        copying.advance(made, token)
    assert (copying.place, copying.streak) == (10, 10)
    made.append(77)
    copying.advance(made, 77)
    assert copying.place == 11
    assert 0 < copying.streak < 3


def test_a_token_takes_as_long_in_a_long_text_as_in_a_short_one() -> None:
    """Counted, not timed: one entry for each length a token."""
    made = index(list(range(5_000)))
    assert len(made._seen) <= MAX_NGRAM * 5_000
    before = len(made._seen)
    made.append(1)
    made.find()
    assert len(made._seen) - before <= MAX_NGRAM


# Over text, where there are no tokens


async def proposed(*parts: str, count: int = 4) -> list[str]:
    """What is proposed after all the parts, read one after another."""
    lookup, text = TextLookupDrafter(), ""
    for part in parts:
        text += part
        draft = await lookup.propose(text, count)
    assert "".join(token.text for token in draft.tokens) == draft.text
    return [token.text for token in draft.tokens]


SAID = "So the old man and the sea is a book. Again: the old man"


async def test_over_text_it_proposes_the_words_and_signs_that_followed() -> None:
    assert await proposed(SAID) == [" and", " the"], "no more than it rests on"
    assert await proposed(SAID, " and the sea is a b") == ["ook", ".", " Again", ":"]
    assert await proposed("日本の首都は東京です。日本の首都は") == ["東", "京", "で", "す"]


async def test_over_text_a_word_that_is_being_written_is_written_on_or_nothing_is_proposed() -> None:
    assert await proposed(SAID, " an") == ["d", " the", " sea", " is"]
    assert await proposed(SAID, " or") == []


async def test_over_text_nothing_is_proposed_on_the_strength_of_a_word_or_two() -> None:
    assert await proposed("an old man. the man") == []
    assert await proposed("") == []
    assert await proposed(SAID, count=0) == []


@given(st.text(st.sampled_from("ab .\n本"), max_size=40), st.data())
async def test_over_text_it_is_the_same_however_the_text_came(text: str, data: st.DataObject) -> None:
    cut = data.draw(st.integers(0, len(text)))
    assert await proposed(text[:cut], text[cut:]) == await proposed(text)
