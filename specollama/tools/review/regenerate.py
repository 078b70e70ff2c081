"""One more reply to an item, with a new seed; the pair stays open for the next."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from types import TracebackType
from typing import Self

from specollama.backends.ollama.schema import Message
from specollama.config.settings import PairSettings
from specollama.pairs.pair import Pair
from specollama.tools.review.answering import answer_item, seed_for
from specollama.tools.review.batch import check_same_pair
from specollama.tools.review.log_entries import ItemAnswered
from specollama.tools.review.prompts import BatchItem
from specollama.tools.review.run_folder import ReviewRun
from specollama.tools.review.state import ReviewItem


class Regenerator:
    """Opens the pair when it is first wanted. Use it in a `with` statement. `settings`: how the run named its pair."""

    def __init__(self, run: ReviewRun, settings: Callable[[], PairSettings], environ: Mapping[str, str]) -> None:
        self._run = run
        self._settings = settings
        self._environ = environ
        self._runner = asyncio.Runner()
        self._pair: Pair | None = None

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._pair:
            self._runner.run(self._pair.__aexit__(None, None, None))
        self._runner.close()

    def regenerate(self, item: ReviewItem, *, plain: bool) -> ItemAnswered:
        """Another reply to the item, not written yet.

        Raises UsageError when the pair isn't the run's any more, and as `Pair.reply` does.
        """
        pair, opened, before = self._opened(), self._run.state.opened, item.answer
        assert opened is not None
        assert before is not None
        messages = [Message.model_validate(message) for message in before.messages]
        asked = BatchItem(item.id, messages, before.options, before.metadata)
        attempt = item.attempts + 1
        seed = seed_for(pair.settings, asked, opened.seed, attempt)
        return self._runner.run(answer_item(pair, asked, attempt, seed, plain=plain))

    def _opened(self) -> Pair:
        if self._pair is None:
            settings = self._settings()
            check_same_pair(self._run, settings)
            pair = Pair(settings, self._environ)
            self._runner.run(pair.__aenter__())
            self._pair = pair
        return self._pair
