"""Speculative beside plain: the same conversation both ways, and no factor without a look at the texts."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import aclosing
from dataclasses import dataclass, field, replace
from itertools import accumulate, zip_longest
from typing import Any

from specollama.config.settings import PairSettings
from specollama.pairs.pair import Pair
from specollama.pairs.report import stats_object
from specollama.pairs.request import ChatInput
from specollama.spec_decode.events import Done, Event, Text
from specollama.spec_decode.metrics import Stats
from specollama.spec_decode.types import DoneReason, Route

NEAR_TIE = 0.02
"""The gap below which another batch may choose otherwise: for full-precision targets. Quantised ones move more, up to
0.4 for a 4-bit one."""


@dataclass(slots=True)
class CollectedReply:
    """A whole reply in pieces, thinking first where that is gathered too, and its counters.

    `reason` None: it was cut short.
    """

    pieces: list[Text] = field(default_factory=list)
    reason: DoneReason | None = None
    stats: Stats = field(default_factory=Stats)

    @property
    def text(self) -> str:
        """The whole text, thinking included: it is timed and compared."""
        return "".join(piece.text for piece in self.pieces)

    @property
    def answer(self) -> str:
        """The text without the thinking."""
        return "".join(piece.text for piece in self.pieces if not piece.thinking)

    @property
    def piece_offsets(self) -> dict[int, Text]:
        """The pieces by the offsets, in characters, at which they begin."""
        ends = accumulate((len(piece.text) for piece in self.pieces), initial=0)
        return dict(zip(ends, self.pieces, strict=False))


@dataclass(frozen=True, slots=True)
class Comparison:
    """The same conversation speculated and plain."""

    speculative: CollectedReply
    plain: CollectedReply

    @property
    def identical(self) -> bool:
        return self.speculative.text == self.plain.text

    @property
    def factor(self) -> float | None:
        """Tokens per second, speculative over plain; None when either has no text: that is no speed-up."""
        if not self.speculative.text or not self.plain.text:
            return None
        ours, theirs = self.speculative.stats.tokens_per_second, self.plain.stats.tokens_per_second
        return ours / theirs if ours and theirs else None

    @property
    def first_difference(self) -> int | None:
        """The offset, in characters, at which the texts part; None when they are identical."""
        return first_difference(self.speculative, self.plain)

    @property
    def gap(self) -> float | None:
        """How much more probable the best token was than the second (log-probabilities) where the texts part.

        None when they are identical, or the target's row isn't known there. Engines aren't bit-stable: a gap of some
        hundredths is a near-tie, which may fall either way in another batch.
        """
        return gap_at_difference(self.speculative, self.plain)

    @property
    def difference(self) -> str:
        """Where the texts part, in words; "" when they are identical."""
        if self.identical:
            return ""
        where = f"they part after {self.first_difference} characters"
        if self.gap is None:
            return where
        return f"{where}: {'a near-tie' if self.gap < NEAR_TIE else 'no near-tie'}, gap {self.gap:.4f}"

    def as_object(self) -> dict[str, Any]:
        """The speculative reply's counters, and the comparison, as one JSON object."""
        plain = self.plain.stats.tokens_per_second
        return {
            "identical": self.identical,
            "first_difference": self.first_difference,
            "gap": None if self.gap is None else round(self.gap, 4),
            "factor": None if self.factor is None else round(self.factor, 3),
            **stats_object(self.speculative.stats),
            "plain_tokens_per_second": None if plain is None else round(plain, 4),
            "plain_total_duration": self.plain.stats.total_duration,
        }


def first_difference(reply: CollectedReply, other: CollectedReply) -> int | None:
    """The offset, in characters, at which two texts part; None when they are identical."""
    pairs = enumerate(zip_longest(reply.text, other.text))
    return next((offset for offset, (ours, theirs) in pairs if ours != theirs), None)


def gap_at_difference(reply: CollectedReply, other: CollectedReply) -> float | None:
    """The gap of a reply's two best tokens where another parts from it; None where it isn't known, or they don't.

    That is where both last began a token together: of "a:" and "a::" the texts part behind the ":", which was drawn.
    """
    parted = first_difference(reply, other)
    if parted is None:
        return None
    ours, theirs = reply.piece_offsets, other.piece_offsets
    place = max((offset for offset in ours.keys() & theirs.keys() if offset <= parted), default=None)
    if place is None or ours[place].text == theirs[place].text:
        return None  # one of them has ended
    best = [token.logprob for token in ours[place].top[:2] if token.logprob is not None]
    return best[0] - best[1] if len(best) == 2 else None


async def collect_reply(
    events: AsyncIterator[Event], show: Callable[[Event], None] = lambda event: None
) -> CollectedReply:
    """Gather a reply; `show` sees each event as it comes."""
    reply = CollectedReply()
    async for event in events:
        show(event)
        if isinstance(event, Text) and not event.thinking:
            reply.pieces.append(event)
        if isinstance(event, Done):
            reply.reason, reply.stats = event.reason, event.stats
    return reply


async def compare(
    settings: PairSettings,
    environ: Mapping[str, str],
    conversation: ChatInput,
    show: Callable[[Event], None] = lambda event: None,
) -> Comparison:
    """Both replies, one after the other, after a token each way that loads the models and warms the prompt up.

    `show` sees the speculative one.
    """
    warm = replace(conversation, options={**conversation.options, "num_predict": 1})
    async with Pair(settings, environ) as pair:
        alone = pair.with_overrides(route=Route.PLAIN)
        for side in (alone, pair):
            async with aclosing(side.reply(warm)) as events:
                await collect_reply(events)
        async with aclosing(pair.reply(conversation)) as events:
            speculative = await collect_reply(events, show)
        async with aclosing(alone.reply(conversation)) as events:
            plain = await collect_reply(events)
    return Comparison(speculative, plain)
