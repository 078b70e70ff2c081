"""Where a reply ends: stop strings and num_predict, token by token, whatever comes at once."""

from __future__ import annotations

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from specollama.spec_decode.stopping_criteria import StoppingCriteria
from specollama.spec_decode.types import DoneReason
from tests.support.draws import examples


def fed(stopper: StoppingCriteria[int], *tokens: str) -> list[tuple[str, int]]:
    """The pieces shown for these tokens, tagged by their place, as far as the reply goes."""
    pieces: list[tuple[str, int]] = []
    for place, token in enumerate(tokens):
        if stopper.reason is None:
            pieces += stopper.add(token, place)
    return pieces


def text(pieces: list[tuple[str, int]]) -> str:
    return "".join(piece for piece, _ in pieces)


def test_without_a_condition_each_token_is_shown_at_once() -> None:
    stopper = StoppingCriteria[int]()
    assert stopper.add("a", 0) == [("a", 0)]
    assert stopper.add(" b", 1) == [(" b", 1)]
    assert stopper.reason is None
    assert stopper.remaining is None


def test_a_stop_string_is_not_shown_and_ends_the_reply() -> None:
    stopper = StoppingCriteria[int](["END"])
    assert fed(stopper, "one", " END", " two") == [("one", 0), (" ", 1)]
    assert stopper.reason is DoneReason.STOP
    assert stopper.tokens == 2


def test_the_possible_beginning_of_a_stop_string_is_held_back_until_it_is_decided() -> None:
    stopper = StoppingCriteria[int](["abc"])
    assert stopper.add("xa", 0) == [("x", 0)]
    assert stopper.add("b", 1) == []
    assert stopper.add("d", 2) == [("a", 0), ("b", 1), ("d", 2)]


def test_only_what_can_still_become_a_stop_string_is_held() -> None:
    stopper = StoppingCriteria[int](["aab"])
    assert stopper.add("aaa", 0) == [("a", 0)]
    assert stopper.add("b", 1) == []
    assert stopper.reason is DoneReason.STOP


def test_of_two_stop_strings_in_one_token_the_first_place_counts() -> None:
    assert fed(StoppingCriteria[int](["z", "b"]), "abcz") == [("a", 0)]


def test_a_stop_string_that_is_whole_ends_the_reply_before_a_longer_one_can() -> None:
    stopper = StoppingCriteria[int](["abcd", "b"])
    assert fed(stopper, "xa", "b", "cd") == [("x", 0), ("a", 0)]
    assert stopper.tokens == 2


def test_an_empty_stop_string_never_stops() -> None:
    assert fed(StoppingCriteria[int](["", "q"]), "a", "b") == [("a", 0), ("b", 1)]


def test_the_reply_ends_after_as_many_tokens_as_it_may_have() -> None:
    stopper = StoppingCriteria[int](limit=2)
    assert stopper.remaining == 2
    assert fed(stopper, "a", "b", "c") == [("a", 0), ("b", 1)]
    assert stopper.reason is DoneReason.LENGTH
    assert stopper.remaining == 0


def test_what_is_held_at_the_limit_is_shown() -> None:
    stopper = StoppingCriteria[int](["abc"], limit=2)
    assert fed(stopper, "a", "b") == [("a", 0), ("b", 1)]
    assert stopper.reason is DoneReason.LENGTH


def test_a_stop_string_in_the_last_token_counts_as_a_stop() -> None:
    stopper = StoppingCriteria[int](["."], limit=2)
    assert fed(stopper, "a", "b.") == [("a", 0), ("b", 1)]
    assert stopper.reason is DoneReason.STOP


def test_a_character_of_several_tokens_counts_as_so_many() -> None:
    stopper = StoppingCriteria[int](limit=4)
    stopper.add("é", 0, 3)
    assert stopper.remaining == 1
    stopper.add("東", 1, 3)
    assert stopper.reason is DoneReason.LENGTH
    assert stopper.remaining == 0


@pytest.mark.parametrize("reason", list(DoneReason))
def test_what_is_held_when_the_target_ends_is_shown(reason: DoneReason) -> None:
    stopper = StoppingCriteria[int](["abc"])
    stopper.add("xa", 0)
    stopper.add("b", 1)
    assert stopper.flush(reason) == [("a", 0), ("b", 1)]
    assert stopper.reason is reason


def test_an_end_with_nothing_held_shows_nothing() -> None:
    assert StoppingCriteria[int]().flush() == []


def test_nothing_may_come_after_the_end() -> None:
    stopper = StoppingCriteria[int](limit=1)
    stopper.add("a", 0)
    with pytest.raises(AssertionError, match="over"):
        stopper.add("b", 1)


def reference(tokens: list[str], stops: list[str], limit: int | None) -> tuple[str, DoneReason | None, int]:
    """The text, why it ended, and the tokens used, by looking at the whole text after each token."""
    joined = ""
    for used, token in enumerate(tokens, start=1):
        joined += token
        found = [joined.find(stop) for stop in stops if stop and stop in joined]
        if found:
            return joined[: min(found)], DoneReason.STOP, used
        if limit is not None and used >= limit:
            return joined, DoneReason.LENGTH, used
    return joined, None, len(tokens)


letters = st.text(alphabet="aab.é", max_size=4)
stop_strings = st.lists(st.text(alphabet="aab.é", max_size=5), max_size=3)


@examples(200)
@given(st.lists(letters, max_size=10), stop_strings, st.none() | st.integers(1, 8))
@example(["aa", "ab"], ["aab"], None)
@example(["ab", "ab", "a"], ["ababb", "aba."], None)
def test_any_tokens_give_what_looking_at_the_whole_text_after_each_gives(
    tokens: list[str], stops: list[str], limit: int | None
) -> None:
    stopper = StoppingCriteria[int](stops, limit)
    shown = fed(stopper, *tokens)
    expected, reason, used = reference(tokens, stops, limit)
    assert stopper.reason is reason
    assert stopper.tokens == used
    if reason is None:
        shown += stopper.flush()
    assert text(shown) == expected


@examples(150)
@given(st.lists(letters, max_size=10), stop_strings)
def test_what_is_shown_is_a_beginning_of_the_text_and_nothing_of_a_stop_string(
    tokens: list[str], stops: list[str]
) -> None:
    stopper = StoppingCriteria[int](stops)
    shown = ""
    whole, _, _ = reference(tokens, stops, None)
    for place, token in enumerate(tokens):
        if stopper.reason is None:
            shown += text(stopper.add(token, place))
            assert whole.startswith(shown)
            assert not any(stop in shown for stop in stops if stop)
            held = "".join(tokens[: place + 1]).removeprefix(shown)
            assert stopper.reason or not held or any(stop.startswith(held) for stop in stops)


@examples(150)
@given(st.lists(letters, max_size=10), stop_strings)
def test_each_piece_keeps_the_tag_of_the_token_that_it_is_from(tokens: list[str], stops: list[str]) -> None:
    stopper = StoppingCriteria[int](stops)
    pieces = fed(stopper, *tokens)
    if stopper.reason is None:
        pieces += stopper.flush()
    tags = [tag for _, tag in pieces]
    assert tags == sorted(tags)
    for tag in set(tags):
        assert tokens[tag].startswith("".join(piece for piece, of in pieces if of == tag))
