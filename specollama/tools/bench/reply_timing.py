"""When the parts of a reply came."""

from __future__ import annotations

from dataclasses import dataclass, field
from time import perf_counter_ns

from specollama.spec_decode.events import Done, Event, Text, decode_rate, first_burst
from specollama.tools.bench.comparison import CollectedReply


@dataclass(slots=True)
class ReplyTiming:
    """A reply, gathered by `observe` event by event as it comes. Durations in nanoseconds from `began`.

    Decoding is timed from the first *burst* on, and the tokens of that burst don't count. A burst is what one round
    settled (several tokens at one moment), or one token of a stream. The first one carries the reading of the prompt,
    so its time isn't decoding; and if its tokens were counted nevertheless, a side that begins with a burst of eight
    would get seven of them for nothing. That would be 7 % of 96 tokens, in favour of speculation. The end of the reply
    counts for both, its time and its token.
    """

    began: int = field(default_factory=perf_counter_ns)
    reply: CollectedReply = field(default_factory=CollectedReply)
    first_text: int | None = None
    end: int | None = None

    def observe(self, event: Event, now: int | None = None) -> None:
        """`now`: of the same clock as `began`; None: this moment."""
        elapsed = (perf_counter_ns() if now is None else now) - self.began
        if isinstance(event, Text):
            if self.first_text is None:
                self.first_text = elapsed
            self.reply.pieces.append(event)
        if isinstance(event, Done):
            self.end = elapsed
            self.reply.reason, self.reply.stats = event.reason, event.stats

    @property
    def first_burst(self) -> int:
        """Tokens, so far as they have a text."""
        return first_burst(piece.round for piece in self.reply.pieces)

    @property
    def decode_duration(self) -> int | None:
        """From the first burst to the end; None for a reply without text or end."""
        return None if self.first_text is None or self.end is None else self.end - self.first_text

    @property
    def tokens_per_second(self) -> float | None:
        """Of decoding; None when all came in one burst, and there is nothing to time."""
        return decode_rate(self.reply.stats.eval_count, self.first_burst, (self.decode_duration or 0) / 1e9)

    @property
    def tokens_per_second_overall(self) -> float | None:
        """Of the whole reply, the reading of the prompt included."""
        return self.reply.stats.eval_count / (self.end / 1e9) if self.end else None
