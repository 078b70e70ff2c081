"""What is assumed of a reply and of its draft before anything was measured."""

from __future__ import annotations

ASSUMED_ACCEPTANCE = 0.8
"""Acceptance rate of a draft model of the target's family: generous, since a poor draft is noticed while it runs."""

ASSUMED_ACCEPTANCE_OTHER_TOKENIZER = 0.6
"""Acceptance rate of a draft model with another tokenizer."""

_REPLY_TOKENS = 256
_PREFILL_SHARE = 0.2  # of the reply's plain time, that may go into prefilling the prompt once more for each slot


def prefill_is_too_long(seconds: float, plain_seconds: float) -> bool:
    """Whether prefilling the prompt in more slots takes too much of a reply.

    `plain_seconds`: of a plain decode step of the target.
    """
    return seconds > _PREFILL_SHARE * _REPLY_TOKENS * plain_seconds
