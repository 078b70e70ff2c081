"""Speculative beside plain, measured: no factor without a look at the texts."""

from specollama.tools.bench.comparison import NEAR_TIE, CollectedReply, Comparison, collect_reply, compare

__all__ = ["NEAR_TIE", "CollectedReply", "Comparison", "collect_reply", "compare"]
