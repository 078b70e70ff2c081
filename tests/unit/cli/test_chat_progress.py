"""The line of counts, and the context that fills."""

from __future__ import annotations

import pytest

from specollama.cli.chat.progress import ContextUsage, ReplyProgress
from specollama.spec_decode.events import Done, Status, Text
from specollama.spec_decode.metrics import Stats
from specollama.spec_decode.types import DoneReason, Draft, Origin, OutputToken, RoundRecord, Token, VerifyResult


def a_round(accepted: int, tested: int) -> RoundRecord:
    emitted = tuple(OutputToken(Token("x"), Origin.ACCEPTED) for _ in range(accepted + 1))
    return RoundRecord(Draft(), VerifyResult(emitted, drafted=tested, tested=tested, accepted=accepted))


def test_the_line_of_a_reply() -> None:
    progress = ReplyProgress()
    assert progress.line() == ""
    progress.event(Status(on=True, detail="local, lookahead 1-8; weak in some way"), 0.0)
    for number, accepted in enumerate((4, 1), 1):
        progress.round(a_round(accepted, 5))
        for _ in range(accepted + 1):
            progress.event(Text("x", Origin.ACCEPTED, number), 1.0 if number == 1 else 1.5)
    assert progress.line() == "on (local, lookahead 1-8) · 5 of 10 drafted tokens accepted · 3.5 per round · 4.0 tok/s"
    progress.event(Done(DoneReason.STOP, Stats(eval_count=8)), 2.0)
    assert progress.line().endswith("3.0 tok/s"), "tokens after the first burst of five, over the second that they took"


def timed(emitted: int, drafted: int, draft: float, score: float) -> RoundRecord:
    tokens = tuple(OutputToken(Token("x"), Origin.ACCEPTED) for _ in range(emitted))
    result = VerifyResult(tokens, drafted=drafted, tested=drafted, accepted=emitted - 1)
    return RoundRecord(Draft(), result, draft, score)


def test_the_gain_is_estimated_by_the_replys_own_plain_steps() -> None:
    progress = ReplyProgress()
    progress.round(timed(1, 0, 0.0, 9.0))  # reads the prompt
    for seconds in (0.1, 0.1, 0.7):
        progress.round(timed(1, 0, 0.0, seconds))
    for _ in range(9):
        progress.round(timed(5, 4, 0.05, 0.15))
    assert progress.line() == "1.8x plain (estimated) · 36 of 36 drafted tokens accepted · 5.0 per round"


@pytest.mark.parametrize(("plain", "drafting"), [(2, 3), (5, 0)], ids=["too few plain steps", "plain steps alone"])
def test_without_both_kinds_of_steps_no_gain_is_told(plain: int, drafting: int) -> None:
    progress = ReplyProgress()
    for _ in range(plain + 1):
        progress.round(timed(1, 0, 0.0, 0.1))
    for _ in range(drafting):
        progress.round(timed(5, 4, 0.05, 0.15))
    assert "plain" not in progress.line()


def test_a_slow_reply_is_told_as_one() -> None:
    progress = ReplyProgress()
    for _ in range(5):
        progress.round(timed(1, 0, 0.0, 0.1))
    for _ in range(4):
        progress.round(timed(1, 8, 0.2, 0.2))
    assert progress.line().startswith("0.4x plain (estimated)")


def test_a_burst_has_no_rate() -> None:
    progress = ReplyProgress()
    for _ in range(8):
        progress.event(Text("x", Origin.ACCEPTED, 1), 1.0)
    progress.event(Done(DoneReason.STOP, Stats(eval_count=8)), 1.2)
    assert progress.rate is None


def test_a_plain_reply_has_a_rate_from_its_first_token_on() -> None:
    progress = ReplyProgress()
    for number in range(5):
        progress.event(Text("x", Origin.PLAIN), 10 + number / 4)
    assert progress.rate == 4.0


@pytest.mark.parametrize(
    ("before", "after", "length", "said"),
    [
        (0, 700, 1000, ""),
        (
            700,
            760,
            1000,
            "the context is 76% full (760 of 1000 tokens): /set parameter num_ctx 2000 makes it larger, "
            "/undo and /clear make room",
        ),
        (760, 800, 1000, ""),
        (800, 910, 1000, "the context is 91% full (910 of 1000 tokens)"),
        (910, 995, 1000, "the context is full (995 of 1000 tokens)"),
        (0, 9999, None, ""),
    ],
)
def test_a_context_that_fills_is_announced_before_it_is_full(
    before: int, after: int, length: int | None, said: str
) -> None:
    announced = ContextUsage(after, length).announcement(ContextUsage(before, length))
    assert announced.startswith(said)
    assert bool(announced) == bool(said)
