"""Shows the package's log records on stderr, one line each: `--log-level`, SPECOLLAMA_LOG."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from enum import StrEnum


class LogLevel(StrEnum):
    """The least level that is shown. `info`: requests, decisions and counters; `debug`: requests as they are sent."""

    DEBUG = "debug"
    INFO = "info"
    WARNING = "warning"
    ERROR = "error"


@contextmanager
def shown_log(level: LogLevel) -> Iterator[None]:
    """Write records of the logger `specollama` to stderr from this level on, until the block ends."""
    import logging  # only where it is wanted

    from specollama.errors import one_line

    class OneLine(logging.Formatter):
        def format(self, record: logging.LogRecord) -> str:
            return one_line(super().format(record))

    handler = logging.StreamHandler()
    handler.setFormatter(OneLine("%(asctime)s %(levelname)s %(name)s: %(message)s"))
    logger = logging.getLogger("specollama")
    before = logger.handlers, logger.propagate, logger.level
    logger.handlers, logger.propagate = [handler], False
    logger.setLevel(level.upper())
    try:
        yield
    finally:
        logger.handlers, logger.propagate = before[:2]
        logger.setLevel(before[2])
