"""A reply is run as it is planned, or answered plain with the reason: the one place where that is decided."""

from __future__ import annotations

from collections.abc import AsyncGenerator, AsyncIterator, Callable
from contextlib import aclosing
from dataclasses import dataclass

import pytest

from specollama.errors import Refused, RunError
from specollama.pairs.event_streams import fall_back_if_empty
from specollama.pairs.routes.base import NotSpeculated, Plan, speculate_or_plain
from specollama.spec_decode.decode_loop import RoundObserver
from specollama.spec_decode.events import Event, Status, Text
from specollama.spec_decode.types import Origin, Route

SEED = 7


@dataclass(frozen=True)
class MadePlan(Plan):
    """Yields what it is given, and raises what it is given."""

    what: tuple[Event | Exception, ...]
    route: Route = Route.LANES

    async def events(
        self, observer: RoundObserver | None = None, fair_share: Callable[[], int] | None = None
    ) -> AsyncGenerator[Event, None]:
        async with aclosing(fall_back_if_empty(self._attempt(), SEED)) as events:
            async for event in events:
                yield event

    async def _attempt(self) -> AsyncIterator[Event]:
        for each in self.what:
            if isinstance(each, Exception):
                raise each
            yield each


async def heard(make_plan: Callable[[], Plan]) -> list[str]:
    async def planned() -> Plan:
        return make_plan()

    async def run(plan: Plan) -> AsyncGenerator[str, None]:
        async with aclosing(plan.events()) as events:
            async for event in events:
                yield event.text if isinstance(event, Text) else str(event)

    async def plain(why: NotSpeculated) -> AsyncGenerator[str, None]:
        yield f"plain: {why.reason}, seed {why.seed}"

    async with aclosing(speculate_or_plain(planned, run, plain)) as items:
        return [item async for item in items]


def refused(status: int) -> Refused:
    return Refused("no raw prompts", url="http://t", status=status)


ON, OFF, WORD = Status(True, "lanes"), Status(False, "the draft failed"), Text("word", Origin.PLAIN)


async def test_a_reply_without_a_plan_is_plain_with_the_reason() -> None:
    def no_plan() -> Plan:
        raise NotSpeculated("tools")

    assert await heard(no_plan) == ["plain: tools, seed None"]


async def test_a_plan_that_works_is_the_reply() -> None:
    assert await heard(lambda: MadePlan((ON, WORD, OFF))) == [str(ON), "word", str(OFF)]


@pytest.mark.parametrize(
    ("what", "reason"), [((ON, OFF, WORD), "the draft failed"), ((ON, refused(400)), "no raw prompts")]
)
async def test_a_plan_that_fails_before_its_first_token_is_answered_plain_with_its_own_seed(
    what: tuple[Event | Exception, ...], reason: str
) -> None:
    assert await heard(lambda: MadePlan(what)) == [f"plain: {reason}, seed {SEED}"]


@pytest.mark.parametrize("what", [(ON, WORD, refused(400)), (ON, refused(500)), (ON, RunError("broken"))])
async def test_any_other_failure_is_the_replys(what: tuple[Event | Exception, ...]) -> None:
    with pytest.raises(RunError):
        await heard(lambda: MadePlan(what))
