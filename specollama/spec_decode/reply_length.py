"""How long a reply will be: a distribution, learnt from earlier replies and conditioned on what is written already."""

from __future__ import annotations

import hashlib
from bisect import bisect_right
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

BUCKET_BOUNDS = (0, 4, 8, 12, 16, 24, 32, 48, 64, 96, 128, 192, 256, 384, 512, 768, 1024, 1536, 2048, 4096, 8192)
BUCKETS = len(BUCKET_BOUNDS) - 1
_TYPICAL = 64  # tokens: the median of a reply before any was seen
_PRIOR_WEIGHT = 1.0  # replies that the first guess counts for
_MEMORY = 60.0  # replies that a bucket remembers
_LONG = 400  # tokens: a prompt with a pasted text
_BEGINNING = 32  # tokens of a prompt by which its client is known: those of its system prompt, or of its instructions
_MOST_KINDS = 64


@dataclass(slots=True)
class ReplyLengths:
    """The hazard of a reply's end by the tokens written: discrete-time survival analysis (Kaplan and Meier 1958).

    `lived[b]`: replies that went through bucket b or ended in it; `ended[b]`: those that ended in it. A reply that was
    cut off by a limit counts as far as it went. `parent` gives the first guess: the lengths of a wider kind of request.
    Without one it is a heavy tail, P(length > n) = 64 / (64 + n): the longer a reply is, the longer it goes on.
    """

    lived: list[float] = field(default_factory=lambda: [0.0] * BUCKETS)
    ended: list[float] = field(default_factory=lambda: [0.0] * BUCKETS)
    parent: ReplyLengths | None = None

    def hazard(self, bucket: int) -> float:
        """The probability that a reply which reaches the bucket ends in it."""
        prior = self.parent.hazard(bucket) if self.parent else _first_guess(bucket)
        return (self.ended[bucket] + _PRIOR_WEIGHT * prior) / (self.lived[bucket] + _PRIOR_WEIGHT)

    def expected_tokens(self, written: int, limit: int | None) -> float:
        """Tokens that are still to come on average; at most up to `limit` tokens of the whole reply."""
        return sum((before + after) / 2 * tokens for before, after, tokens in self._survival(written, limit))

    def quantile_tokens(self, written: int, limit: int | None, probability: float) -> float:
        """Tokens that are still to come with this probability."""
        sure = 0.0
        for before, after, tokens in self._survival(written, limit):
            if after < probability:
                return sure + tokens * (before - probability) / (before - after)
            sure += tokens
        return sure

    def _survival(self, written: int, limit: int | None) -> Iterator[tuple[float, float, int]]:
        """For each stretch from here on: the probability to reach its beginning and its end, and its tokens."""
        end = BUCKET_BOUNDS[-1] if limit is None else min(limit, BUCKET_BOUNDS[-1])
        alive, begin = 1.0, written
        while begin < end:
            bucket = _bucket(begin)
            until = min(end, BUCKET_BOUNDS[bucket + 1])
            share = (until - begin) / (BUCKET_BOUNDS[bucket + 1] - BUCKET_BOUNDS[bucket])
            after = alive * (1 - self.hazard(bucket)) ** share
            yield alive, after, until - begin
            alive, begin = after, until

    def observe_progress(self, before: int, after: int) -> None:
        """A reply of `before` tokens has `after` tokens by now."""
        for bucket in range(_bucket(before), _bucket(after)):
            self._count(bucket, 0.0)
        if self.parent:
            self.parent.observe_progress(before, after)

    def observe_end(self, tokens: int) -> None:
        """A reply ended by itself after so many tokens."""
        self._count(_bucket(tokens), 1.0)
        if self.parent:
            self.parent.observe_end(tokens)

    def _count(self, bucket: int, ended: float) -> None:
        if self.lived[bucket] >= _MEMORY:
            keep = (_MEMORY - 1) / self.lived[bucket]
            self.lived[bucket] *= keep
            self.ended[bucket] *= keep
        self.lived[bucket] += 1
        self.ended[bucket] += ended


@dataclass(slots=True)
class LengthsByRequest:
    """The lengths of a pair's replies by the kind of request; those not asked for longest are forgotten first."""

    kinds: dict[str, ReplyLengths] = field(default_factory=dict)

    def for_prompt(self, prompt: Sequence[int]) -> ReplyLengths:
        """By whether the prompt is long, and more precisely by how it begins: that differs from client to client."""
        wide = "long" if len(prompt) > _LONG else "short"
        beginning = " ".join(map(str, prompt[:_BEGINNING]))
        narrow = f"{wide} {hashlib.sha256(beginning.encode()).hexdigest()[:16]}"
        for kind in (wide, narrow):
            self.kinds[kind] = self.kinds.pop(kind, ReplyLengths())
        self.kinds[narrow].parent = self.kinds[wide]
        while len(self.kinds) > _MOST_KINDS:
            del self.kinds[next(iter(self.kinds))]
        return self.kinds[narrow]


def _bucket(tokens: int) -> int:
    return min(BUCKETS - 1, bisect_right(BUCKET_BOUNDS, tokens) - 1)


def _first_guess(bucket: int) -> float:
    return 1 - (_TYPICAL + BUCKET_BOUNDS[bucket]) / (_TYPICAL + BUCKET_BOUNDS[bucket + 1])
