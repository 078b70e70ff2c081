"""A target's lanes among the replies of a moment."""

from __future__ import annotations

from contextlib import ExitStack

import pytest

from specollama.pairs.slots import SharedLookahead, SlotPool
from specollama.spec_decode.lookahead import AdaptiveLookahead, FixedLookahead
from specollama.spec_decode.types import Draft, RoundRecord, Token, VerifyResult


@pytest.mark.parametrize(("replies", "share"), [(1, 8), (2, 4), (3, 2), (4, 2)])
def test_replies_share_the_lanes_equally(replies: int, share: int) -> None:
    lanes = SlotPool(8)
    with ExitStack() as stack:
        for _ in range(replies):
            assert lanes.has_room
            stack.enter_context(lanes.speculated_reply())
        assert lanes.fair_share == share
        assert lanes.has_room is (replies < 4)
    assert (lanes.has_room, lanes.fair_share) == (True, 8)


def test_a_plain_reply_takes_one_lane() -> None:
    lanes = SlotPool(4)
    with lanes.plain_reply(), lanes.speculated_reply():
        assert lanes.fair_share == 3
        with lanes.plain_reply():
            assert lanes.fair_share == 2
            assert not lanes.has_room


def test_lanes_are_given_back_however_a_reply_ends() -> None:
    lanes = SlotPool(2)
    with pytest.raises(ValueError, match="broken"), lanes.speculated_reply():
        raise ValueError("broken")
    assert lanes.has_room


def test_a_target_of_one_lane_has_none_to_speculate_with() -> None:
    assert not SlotPool(1).has_room


def test_a_draft_is_never_longer_than_the_share_can_verify() -> None:
    lanes = [8]
    shared = SharedLookahead(FixedLookahead(6), lambda: lanes[0])
    assert shared.max_draft_tokens() == 6
    lanes[0] = 3
    assert shared.max_draft_tokens() == 2
    lanes[0] = 1
    assert shared.max_draft_tokens() == 1, "a round drafts one token at least"


def test_what_is_learnt_reaches_the_lookahead_that_is_shared() -> None:
    adaptive = AdaptiveLookahead(max_tokens=8, tokens=4)
    shared = SharedLookahead(adaptive, lambda: 9)
    draft = Draft(tuple(Token(letter) for letter in "abcd"))
    shared.learn(RoundRecord(draft, VerifyResult(drafted=4, tested=4, accepted=4)))
    assert (shared.max_draft_tokens(), str(shared)) == (6, "1-8")
