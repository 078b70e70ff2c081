"""A dry run over many prompts: every item is answered once, and nothing is sent anywhere."""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import Callable, Iterator
from dataclasses import dataclass

from specollama._version import __version__
from specollama.config.settings import PairSettings
from specollama.errors import MissingPackage, ModelMissing, RunError, Unreachable, UnsupportedPair, UsageError
from specollama.pairs.pair import Pair
from specollama.tools.review.answering import answer_item, describe_pair, seed_for
from specollama.tools.review.log_entries import ItemAnswered, ItemFailed, PairCall, RunOpened
from specollama.tools.review.prompts import BatchItem, PromptFile
from specollama.tools.review.run_folder import ReviewRun
from specollama.tools.review.state import ItemStatus

_FOR_ALL = (Unreachable, ModelMissing, MissingPackage)
"""Faults that the next item would meet as well."""


def begin_run(
    run: ReviewRun, who: str, call: PairCall, settings: PairSettings, prompts: PromptFile, quorum: int
) -> None:
    """Write the first entry of a new run. Raises UsageError when one is there and says something else."""
    opened, told = run.state.opened, describe_pair(settings)
    if opened is None:
        run.append(
            who,
            RunOpened(
                version=__version__,
                call=call,
                settings=told,
                prompts=prompts.name,
                prompts_sha256=prompts.sha256,
                items=tuple(item.id for item in prompts.items),
                quorum=quorum,
                seed=secrets.randbits(31),
            ),
        )
        return
    if opened.prompts_sha256 != prompts.sha256:
        _refuse(run, f"was begun with other prompts ({opened.prompts}, sha256 {opened.prompts_sha256[:12]})")
    if opened.quorum != quorum:
        _refuse(run, f"was begun with quorum {opened.quorum}, not {quorum}")
    check_same_pair(run, settings)


def check_same_pair(run: ReviewRun, settings: PairSettings) -> None:
    """Raises UsageError naming the settings of the pair that changed since the run began."""
    told = describe_pair(settings)
    then = run.state.opened.settings if run.state.opened else told
    for name, value in told.items():
        if then.get(name) != value:
            _refuse(run, f"was begun with {name} {then.get(name)}, not {value}")


def _refuse(run: ReviewRun, why: str) -> None:
    raise UsageError(f"{run.folder}: {why}; give the same, or another folder")


@dataclass(frozen=True, slots=True)
class Batch:
    """The items of a run that have no reply yet. `advance` receives the id of each item after its attempt."""

    run: ReviewRun
    who: str
    pair: Pair
    prompts: PromptFile
    advance: Callable[[str], None]

    async def answer_all(self, concurrency: int) -> None:
        """Answer the unanswered items, several at once; items that failed before are tried once more.

        Raises what would stop every item (no server, no model); other faults are an item's own, and written.
        """
        waiting = iter(self._waiting())
        try:
            async with asyncio.TaskGroup() as group:
                for _ in range(concurrency):
                    group.create_task(self._answer_each(waiting))
        except BaseExceptionGroup as faults:
            raise faults.exceptions[0] from None

    def _waiting(self) -> list[BatchItem]:
        without = {item.id for item in self.run.state.with_status(ItemStatus.WAITING, ItemStatus.FAILED)}
        return [asked for asked in self.prompts.items if asked.id in without]

    async def _answer_each(self, waiting: Iterator[BatchItem]) -> None:
        for asked in waiting:
            self.run.append(self.who, await self._answer(asked))
            self.advance(asked.id)

    async def _answer(self, asked: BatchItem) -> ItemAnswered | ItemFailed:
        opened = self.run.state.opened
        assert opened is not None
        seed = seed_for(self.pair.settings, asked, opened.seed, attempt=1)
        try:
            return await answer_item(self.pair, asked, 1, seed)
        except _FOR_ALL:
            raise
        except (RunError, UnsupportedPair) as error:
            return ItemFailed(id=asked.id, error=str(error))
