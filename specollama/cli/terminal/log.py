"""Shows the package's log records on stderr, one line each: `--log-level`, SPECOLLAMA_LOG."""

from __future__ import annotations

from enum import StrEnum


class LogLevel(StrEnum):
    """The least level that is shown. `info`: requests, decisions and counters; `debug`: requests as they are sent."""

    DEBUG = "debug"
    INFO = "info"
    WARNING = "warning"
    ERROR = "error"


def show_log(level: LogLevel) -> None:
    """Write records of the logger `specollama` to stderr from this level on."""
    import logging  # only where it is wanted

    from specollama.errors import one_line

    class OneLine(logging.Formatter):
        def format(self, record: logging.LogRecord) -> str:
            return one_line(super().format(record))

    handler = logging.StreamHandler()
    handler.setFormatter(OneLine("%(asctime)s %(levelname)s %(name)s: %(message)s"))
    logger = logging.getLogger("specollama")
    logger.handlers = [handler]
    logger.propagate = False
    logger.setLevel(level.upper())
