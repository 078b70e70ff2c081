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
from specollama.tools.review.answering import answer, described, seed_for
from specollama.tools.review.log_entries import Answered, Call, Failed, Opened
from specollama.tools.review.prompts import Asked, Prompts
from specollama.tools.review.run_folder import Run
from specollama.tools.review.state import Status

_FOR_ALL = (Unreachable, ModelMissing, MissingPackage)
"""Faults that the next item would meet as well."""


def begin(run: Run, who: str, call: Call, settings: PairSettings, prompts: Prompts, quorum: int) -> None:
    """Write the first entry of a new run. Raises UsageError when one is there and says something else."""
    opened, told = run.state.opened, described(settings)
    if opened is None:
        run.append(
            who,
            Opened(
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
    refuse_other_pair(run, settings)


def refuse_other_pair(run: Run, settings: PairSettings) -> None:
    """Raises UsageError naming what of the pair isn't as it was when the run began."""
    told = described(settings)
    then = run.state.opened.settings if run.state.opened else told
    for name, value in told.items():
        if then.get(name) != value:
            _refuse(run, f"was begun with {name} {then.get(name)}, not {value}")


def _refuse(run: Run, why: str) -> None:
    raise UsageError(f"{run.folder}: {why}; give the same, or another folder")


@dataclass(frozen=True, slots=True)
class Batch:
    """The items of a run that have no reply yet. `advance` is told of each that was tried, by its id."""

    run: Run
    who: str
    pair: Pair
    prompts: Prompts
    advance: Callable[[str], None]

    async def answer_all(self, concurrency: int) -> None:
        """Answer what isn't answered, so many at once; what failed before is tried once more.

        Raises what would stop every item (no server, no model); other faults are an item's own, and written.
        """
        waiting = iter(self._waiting())
        try:
            async with asyncio.TaskGroup() as group:
                for _ in range(concurrency):
                    group.create_task(self._answer_each(waiting))
        except BaseExceptionGroup as faults:
            raise faults.exceptions[0] from None

    def _waiting(self) -> list[Asked]:
        without = {item.id for item in self.run.state.having(Status.WAITING, Status.FAILED)}
        return [asked for asked in self.prompts.items if asked.id in without]

    async def _answer_each(self, waiting: Iterator[Asked]) -> None:
        for asked in waiting:
            self.run.append(self.who, await self._answer(asked))
            self.advance(asked.id)

    async def _answer(self, asked: Asked) -> Answered | Failed:
        opened = self.run.state.opened
        assert opened is not None
        seed = seed_for(self.pair.settings, asked, opened.seed, attempt=1)
        try:
            return await answer(self.pair, asked, 1, seed)
        except _FOR_ALL:
            raise
        except (RunError, UnsupportedPair) as error:
            return Failed(id=asked.id, error=str(error))
