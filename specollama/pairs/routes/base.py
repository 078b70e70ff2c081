"""What every route implements: a plan for each reply. And what happens when a reply can't be speculated."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import AbstractContextManager, aclosing, nullcontext
from typing import Protocol, TypeVar

from specollama.pairs.slots import SlotPool
from specollama.spec_decode.decode_loop import RoundObserver
from specollama.spec_decode.events import Event
from specollama.spec_decode.types import Route

Item = TypeVar("Item")


class NotSpeculated(Exception):
    """The reply can't be speculated: the target's own server has to answer it. Raised before the first event.

    `seed`: the sampling seed of the failed attempt. The server's answer must use it, since a second, independent sample
    would bias the distribution. None: no token was sampled yet.
    """

    def __init__(self, reason: str, seed: int | None = None) -> None:
        super().__init__(reason)
        self.reason = reason
        self.seed = seed


class Plan(Protocol):
    """How one reply is run. A route that inherits from this class needs `route` and `events` only."""

    @property
    def route(self) -> Route:
        """The route's name, for counters and the status line."""
        ...

    def events(
        self, observer: RoundObserver | None = None, fair_share: Callable[[], int] | None = None
    ) -> AsyncGenerator[Event, None]:
        """Yield the reply: a Status, Text, and Done. Close the generator to stop all work.

        `observer` is called after each round. `fair_share` returns the number of the target's slots that the reply may
        use now; None: all. Raises NotSpeculated before the first event, and RunError.
        """
        ...

    def context_tokens(self, text: str) -> list[int] | None:
        """Token ids of the prompt and of the reply's `text`; None if they aren't known exactly."""
        return None

    def why_busy(self, slots: SlotPool) -> str | None:
        """The reason if the reply would have to wait for other replies; None if it can start now."""
        return None

    def hold_slots(self, slots: SlotPool) -> AbstractContextManager[None]:
        """Context manager that holds the target's slots of the reply while it runs."""
        return nullcontext()


async def speculate_or_plain(
    make_plan: Callable[[], Awaitable[Plan]],
    run: Callable[[Plan], AsyncGenerator[Item, None]],
    plain: Callable[[NotSpeculated], AsyncGenerator[Item, None]],
) -> AsyncGenerator[Item, None]:
    """Yield a reply: as it is planned, or plain with the reason if it can't be speculated.

    `run` and `plain` yield the reply in the form that the caller wants.
    """
    try:
        plan = await make_plan()
        async with aclosing(run(plan)) as speculated:
            async for item in speculated:
                yield item
            return
    except NotSpeculated as failed:
        reason = failed
    async with aclosing(plain(reason)) as items:
        async for item in items:
            yield item
