"""Several drafters for one reply: one that fails takes no other with it."""

from __future__ import annotations

import pytest

from specollama.backends.drafter_pool import DrafterPool
from specollama.backends.prompt_lookup import LookupDrafter
from specollama.errors import RunError
from specollama.spec_decode.calibration import PROMPT_LOOKUP, Calibration, DrafterStats
from specollama.spec_decode.cost_curve import CostCurve
from specollama.spec_decode.planner import Planner
from specollama.spec_decode.reply_length import ReplyLengths
from specollama.spec_decode.types import AcceptanceMethod, Draft, Token, VerifyResult


class Model:
    """A draft model that writes its name, or fails."""

    def __init__(self, name: str, fault: str = "") -> None:
        self.name, self.fault = name, fault

    def uncached_tokens(self, text: str) -> int:
        return 0

    async def propose(self, text: str, count: int) -> Draft:
        if self.fault:
            raise RunError(self.fault)
        return Draft((Token(self.name, None),), source=self.name)

    def learn(self, verdict: VerifyResult) -> None: ...


def pool(told: list[str], *models: Model, lookup: bool) -> DrafterPool:
    sources = {model.name: DrafterStats(0.1, 0.0, Calibration()) for model in models}
    sources[PROMPT_LOOKUP] = DrafterStats(calibration=Calibration())
    planner = Planner(CostCurve({1: 1.0, 8: 1.1}), sources, AcceptanceMethod.GREEDY, ReplyLengths())
    planner.fixed_lengths = (4,)
    found = LookupDrafter(lambda text: [1, 2, 3], str) if lookup else None
    return DrafterPool(found, models, planner, told.append)


async def test_a_model_that_fails_is_left_out_with_its_name_and_the_reason_and_the_others_draft() -> None:
    told = list[str]()
    drafter = pool(told, Model("a", "llama.cpp failed"), Model("b"), lookup=False)
    assert [(await drafter.propose("x", 4)).source for _ in range(3)] == ["", "b", "b"]
    assert told == ["a drafts no more in this reply: llama.cpp failed"]


async def test_where_only_lookup_is_left_it_goes_on() -> None:
    told = list[str]()
    drafter = pool(told, Model("a", "llama.cpp failed"), lookup=True)
    for _ in range(2):
        assert (await drafter.propose("x", 4)).tokens == ()
    assert told == ["a drafts no more in this reply: llama.cpp failed"]


async def test_where_nothing_is_left_the_fault_is_the_replys() -> None:
    told = list[str]()
    with pytest.raises(RunError, match=r"^llama\.cpp failed$"):
        await pool(told, Model("a", "llama.cpp failed"), lookup=False).propose("x", 4)
    assert told == []
