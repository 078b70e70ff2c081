"""Speculative beside plain, measured: no factor without a look at the texts."""

from specollama.tools.bench.comparison import NEAR_TIE, Comparison, Reply, collect, compare

__all__ = ["NEAR_TIE", "Comparison", "Reply", "collect", "compare"]
