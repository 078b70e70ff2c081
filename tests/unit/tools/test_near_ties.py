"""C15: two tokens that are nearly as probable may fall either way; it is said where, and by how much."""

from __future__ import annotations

import pytest

from specollama.spec_decode.events import Text
from specollama.spec_decode.metrics import Stats
from specollama.spec_decode.types import Origin, Token
from specollama.tools.bench import CollectedReply, Comparison


def reply(*pieces: Text) -> CollectedReply:
    return CollectedReply(list(pieces), stats=Stats(eval_count=len(pieces), total_duration=1_000_000_000))


def chosen(text: str, *logprobs: float) -> Text:
    return Text(text, Origin.ACCEPTED, top=tuple(Token(str(place), logprob) for place, logprob in enumerate(logprobs)))


def test_C15_a_flip_of_two_tokens_a_thousandth_apart_is_told_as_a_near_tie() -> None:
    ours = reply(chosen("It is ", -0.1, -5.0), chosen("warm", -0.693, -0.694))
    theirs = reply(chosen("It is ", -0.1, -5.0), chosen("cold", -0.694, -0.695))
    told = Comparison(ours, theirs)
    assert not told.identical
    assert told.gap == pytest.approx(0.001)
    assert told.difference == "they part after 6 characters: a near-tie, gap 0.0010"
    assert told.as_object()["gap"] == 0.001


def test_C15_a_difference_that_no_rounding_explains_is_told_as_one() -> None:
    told = Comparison(reply(chosen("warm", -0.1, -3.0)), reply(chosen("cold", -0.1, -3.0)))
    assert told.difference == "they part after 0 characters: no near-tie, gap 2.9000"


def test_C15_without_a_row_the_gap_is_not_made_up() -> None:
    told = Comparison(reply(chosen("warm")), reply(chosen("cold")))
    assert told.gap is None
    assert told.difference == "they part after 0 characters"


def test_C15_identical_texts_have_no_gap() -> None:
    told = Comparison(reply(chosen("warm", -0.1, -0.2)), reply(chosen("warm", -0.1, -0.2)))
    assert (told.identical, told.gap, told.difference) == (True, None, "")
