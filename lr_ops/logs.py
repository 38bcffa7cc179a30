"""Log events: readable on a terminal, one JSON object per line everywhere else; always on stderr."""

from __future__ import annotations

import logging
import sys
from typing import Any

import structlog

LEVELS = ("debug", "info", "warning", "error")


def configure(level: str = "info", *, json: bool | None = None) -> None:
    """Set up structlog and librdkafka's own messages for this process; `json=None` decides by the terminal."""
    number = logging.getLevelNamesMapping()[level.upper()]
    is_terminal = sys.stderr.isatty()
    as_json = not is_terminal if json is None else json
    structlog.configure(
        processors=[
            structlog.contextvars.merge_contextvars,
            structlog.processors.add_log_level,
            structlog.processors.TimeStamper(fmt="iso", utc=True),
            *_rendering(as_json, is_terminal),
        ],
        wrapper_class=structlog.make_filtering_bound_logger(number),
        logger_factory=structlog.PrintLoggerFactory(sys.stderr),
    )
    # librdkafka tells of every reconnect as an error; whoever waits for a result is told there what matters.
    library = logging.getLogger("lr.librdkafka")
    library.handlers = [_ToStructlog()]
    library.propagate = False
    library.setLevel(number if number <= logging.DEBUG else logging.CRITICAL)


def _rendering(as_json: bool, is_terminal: bool) -> list[Any]:
    if as_json:
        return [structlog.processors.dict_tracebacks, structlog.processors.JSONRenderer(default=str)]
    return [structlog.dev.ConsoleRenderer(colors=is_terminal)]


class _ToStructlog(logging.Handler):
    """Passes what librdkafka says on as events."""

    def emit(self, record: logging.LogRecord) -> None:
        structlog.get_logger(record.name).log(record.levelno, "librdkafka.message", text=record.getMessage())
