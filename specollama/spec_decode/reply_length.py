"""Predicts the remaining length of a reply, in tokens, from the lengths of earlier replies."""

from __future__ import annotations

import hashlib
from bisect import bisect_right
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

BUCKET_BOUNDS = (0, 4, 8, 12, 16, 24, 32, 48, 64, 96, 128, 192, 256, 384, 512, 768, 1024, 1536, 2048, 4096, 8192)
BUCKETS = len(BUCKET_BOUNDS) - 1
_TYPICAL = 64  # tokens: prior median of a reply
_PRIOR_WEIGHT = 1.0  # weight of the prior, in replies
_MEMORY = 60.0  # maximum weight of a bucket's counts, in replies; older counts fade
_LONG = 400  # tokens: a longer prompt counts as long (it probably contains pasted text)
_BEGINNING = 32  # leading prompt tokens that identify a client, by its system prompt or instructions
_MOST_KINDS = 64


@dataclass(slots=True)
class ReplyLengths:
    """Discrete-time survival model of reply length (Kaplan and Meier 1958).

    `lived[b]`: replies that passed through bucket b or ended in it; `ended[b]`: replies that ended in it. A reply cut
    off by a limit is censored there. `parent`, the model of a broader class of requests, gives the prior. Without a
    parent the prior is heavy-tailed: P(length > n) = 64 / (64 + n).
    """

    lived: list[float] = field(default_factory=lambda: [0.0] * BUCKETS)
    ended: list[float] = field(default_factory=lambda: [0.0] * BUCKETS)
    parent: ReplyLengths | None = None

    def hazard(self, bucket: int) -> float:
        """Probability that a reply that reaches the bucket ends in it."""
        prior = self.parent.hazard(bucket) if self.parent else _first_guess(bucket)
        return (self.ended[bucket] + _PRIOR_WEIGHT * prior) / (self.lived[bucket] + _PRIOR_WEIGHT)

    def expected_tokens(self, written: int, limit: int | None) -> float:
        """Expected remaining tokens after `written` tokens. `limit`: maximum tokens of the reply; None: no limit."""
        return sum((before + after) / 2 * tokens for before, after, tokens in self._survival(written, limit))

    def quantile_tokens(self, written: int, limit: int | None, probability: float) -> float:
        """Largest number of tokens that still follow with at least this probability."""
        sure = 0.0
        for before, after, tokens in self._survival(written, limit):
            if after < probability:
                return sure + tokens * (before - probability) / (before - after)
            sure += tokens
        return sure

    def _survival(self, written: int, limit: int | None) -> Iterator[tuple[float, float, int]]:
        """For each interval from `written` on: the probabilities of reaching its start and its end, and its tokens."""
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
        """Count the buckets that a reply passed when it grew from `before` to `after` tokens."""
        for bucket in range(_bucket(before), _bucket(after)):
            self._count(bucket, 0.0)
        if self.parent:
            self.parent.observe_progress(before, after)

    def observe_end(self, tokens: int) -> None:
        """Count a reply that ended naturally after `tokens` tokens."""
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
    """Length models of a pair by class of request, with least-recently-used eviction."""

    kinds: dict[str, ReplyLengths] = field(default_factory=dict)

    def for_prompt(self, prompt: Sequence[int]) -> ReplyLengths:
        """Return the model for prompts with the same size class and the same first tokens, which identify the client.

        Its parent is the model of all prompts of that size class.
        """
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
