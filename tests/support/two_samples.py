"""Whether two samples of texts were drawn alike: Pearson's chi-square test, cells pooled by prefix."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from tests.support.chi_square import upper_tail

_LEAST_EXPECTED = 5.0  # draws in either sample: with rarer cells the test's distribution is off


@dataclass(frozen=True, slots=True)
class Departure:
    statistic: float
    freedom: int

    @property
    def p_value(self) -> float:
        """How likely samples at least so different are, if each two were drawn alike."""
        return upper_tail(self.statistic, self.freedom)

    def __str__(self) -> str:
        return f"chi-square {self.statistic:.1f} of {self.freedom} degrees of freedom, p = {self.p_value:.2g}"


def departure(ours: Sequence[Counter[str]], theirs: Sequence[Counter[str]]) -> Departure:
    """The first sample of ours against the first of theirs, and so forth, in one test."""
    parts = [_departure(first, second) for first, second in zip(ours, theirs, strict=True)]
    return Departure(sum(part.statistic for part in parts), sum(part.freedom for part in parts))


def _departure(first: Counter[str], second: Counter[str]) -> Departure:
    """Which texts are rare is seen from both samples as one, so that the pooling says nothing of their difference."""
    share = first.total() / (first.total() + second.total())
    cells = pooled(first + second, _LEAST_EXPECTED / min(share, 1 - share))
    statistic = 0.0
    for cell in cells:
        seen, total = sum(first[text] for text in cell), sum(first[text] + second[text] for text in cell)
        statistic += (seen - total * share) ** 2 / (total * share * (1 - share))
    return Departure(statistic, len(cells) - 1)


def pooled(counts: Counter[str], least: float) -> list[frozenset[str]]:
    """The texts in cells of at least `least` draws: a rare text goes with those that begin like it."""
    cells, rest = list[frozenset[str]](), frozenset[str]()
    for texts in _pools(sorted(counts), 0, counts, least):
        if _weight(texts, counts) >= least:
            cells.append(frozenset(texts))
        else:
            rest |= frozenset(texts)
    if rest and cells:
        smallest = min(range(len(cells)), key=lambda place: _weight(cells[place], counts))
        cells[smallest] |= rest
    return cells or [rest]


def _pools(texts: Sequence[str], depth: int, counts: Counter[str], least: float) -> Iterator[Sequence[str]]:
    """The texts, alike in their first `depth` characters, in pools; only the last may weigh less than `least`."""
    if len(texts) <= 1:
        yield texts
        return
    branches: dict[str, list[str]] = {}
    for text in texts:
        branches.setdefault(text[depth : depth + 1], []).append(text)
    rest: list[str] = []
    for branch in branches.values():
        for pool in _pools(branch, depth + 1, counts, least):
            if _weight(pool, counts) >= least:
                yield pool
            else:
                rest += pool
    if rest:
        yield rest


def _weight(texts: Sequence[str] | frozenset[str], counts: Counter[str]) -> int:
    return sum(counts[text] for text in texts)
