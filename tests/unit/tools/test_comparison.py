"""A factor is only told beside a look at the texts."""

from __future__ import annotations

from specollama.spec_decode.events import Text
from specollama.spec_decode.metrics import Stats
from specollama.spec_decode.types import Origin
from specollama.tools.bench import CollectedReply, Comparison


def reply(*texts: str, seconds: int = 1) -> CollectedReply:
    stats = Stats(eval_count=len(texts), total_duration=seconds * 10**9)
    return CollectedReply([Text(text, Origin.PLAIN) for text in texts], stats=stats)


def test_the_texts_count_and_not_how_they_came() -> None:
    comparison = Comparison(reply("Mer", "cury"), reply("M", "ercury"))

    assert comparison.identical
    assert comparison.first_difference is None


def test_the_place_where_texts_part_is_told() -> None:
    assert Comparison(reply("Mercury"), reply("Merlin")).first_difference == 3
    assert Comparison(reply("Mer"), reply("Merlin")).first_difference == 3


def test_the_factor_is_of_tokens_per_second() -> None:
    comparison = Comparison(reply("a", "b", seconds=1), reply("a", "b", seconds=3))

    assert comparison.factor == 3
    assert comparison.as_object()["factor"] == 3


def test_an_empty_reply_has_no_factor() -> None:
    assert Comparison(reply(), reply("a")).factor is None
    assert Comparison(reply("a"), reply()).factor is None
    assert Comparison(CollectedReply(), CollectedReply()).as_object()["factor"] is None
