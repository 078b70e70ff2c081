"""Logs what was decided for a reply, and its counters, to the standard logger `specollama.reply`. Never a text."""

from __future__ import annotations

import logging
import re

from specollama.spec_decode.events import Done, Event, Status

LOG = logging.getLogger("specollama.reply")

_QUOTED = re.compile(r"(?<!\w)(['\"]).*\1")  # an apostrophe in a word is no quote
_SERVERS_WORDS = re.compile(r"(https?://\S+): .*")


def log_event(event: Event) -> None:
    """Log a decision (Status) or the counters at the end (Done), at level INFO. Other events hold texts only."""
    if isinstance(event, Status):
        LOG.info("%s", without_texts(str(event)))
    elif isinstance(event, Done):
        stats = event.stats
        LOG.info(
            "reply ended (%s): route %s, %d tokens, %d rounds, %d drafted, %d accepted, %.0f ms",
            event.reason,
            stats.route,
            stats.eval_count,
            stats.rounds,
            stats.drafted,
            stats.accepted,
            stats.total_duration / 1e6,
        )


def without_texts(reason: str) -> str:
    """Return a reason without what a server said in it, since that may repeat a prompt or a reply.

    Messages quote unexpected answers, and put a server's own words behind its URL and a colon.
    """
    return _QUOTED.sub("(not logged)", _SERVERS_WORDS.sub(r"\1: (not logged)", reason))
