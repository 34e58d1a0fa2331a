"""The log of the servers (T4): one line per event on stderr, with a constant text and fields, so that people can read
it and programs can search it::

    2026-01-31 12:00:00.123 INFO    broker-a ternmq.broker.registration registered name_server=127.0.0.1:9876 topics=12
"""

from __future__ import annotations

import logging
import sys
from typing import Final

from ternmq.errors import ConfigError

LEVELS: Final = ("debug", "info", "warning", "error")

#: Attributes of every log record; all others were passed with ``extra=``.
_STANDARD: Final = frozenset(vars(logging.makeLogRecord({}))) | {"message", "asctime", "taskName"}


class FieldsFormatter(logging.Formatter):
    """Time, level, program, logger, event, then ``key=value`` for each field of ``extra``."""

    default_msec_format = "%s.%03d"

    def __init__(self, label: str = "") -> None:
        super().__init__()
        self._label = f"{label} " if label else ""

    def format(self, record: logging.LogRecord) -> str:
        fields = "".join(f" {name}={_quoted(value)}" for name, value in vars(record).items() if name not in _STANDARD)
        line = (
            f"{self.formatTime(record)} {record.levelname:<7} {self._label}{record.name} {record.getMessage()}{fields}"
        )
        if record.exc_info:
            line += "\n" + self.formatException(record.exc_info)
        return line


def set_up(level: str, *, label: str = "") -> None:
    """Log to stderr from ``level`` on. ``label`` distinguishes the lines of several programs on one terminal."""
    if level.lower() not in LEVELS:
        raise ConfigError(f"invalid log level {level!r}: expected one of {', '.join(LEVELS)}")
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(FieldsFormatter(label))
    logging.basicConfig(level=level.upper(), handlers=[handler], force=True)


def _quoted(value: object) -> str:
    text = str(value)
    return repr(text) if not text or any(char.isspace() or char in "='\"" for char in text) else text
