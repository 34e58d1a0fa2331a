"""Log lines that others can cause at any rate, limited in number.

Any client that reaches a port can make a server refuse, remove or drop something, thousands of times a second. The
first lines of a kind are logged; the others are counted, and the next line has their number. What clients have sent may
be quoted in them, so each stays one line (``one_line``).
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Final

#: In this time at most ``lines_max`` lines of one kind are logged.
PAUSE_S: Final = 10.0


_LENGTH_MAX: Final = 2000


def one_line(text: str) -> str:
    """A text that others had a part in, safe to log: no line breaks, no characters that a terminal obeys, not long."""
    text = text if len(text) <= _LENGTH_MAX else f"{text[:_LENGTH_MAX]}…"
    return text if text.isprintable() else "".join(one if one.isprintable() else "?" for one in text)


class RareLog:
    """``monotonic`` is a clock in seconds. Kinds are a small fixed set: they are never removed."""

    def __init__(self, log: logging.Logger, monotonic: Callable[[], float], *, lines_max: int = 1) -> None:
        self._log = log
        self._monotonic = monotonic
        self._lines_max = lines_max
        #: Kind → when its current period ends, lines logged in it, and lines suppressed since the last one.
        self._kinds: dict[str, tuple[float, int, int]] = {}

    def info(self, kind: str, sentence: str) -> None:
        self._write(logging.INFO, kind, sentence)

    def warning(self, kind: str, sentence: str) -> None:
        self._write(logging.WARNING, kind, sentence)

    def error(self, kind: str, sentence: str) -> None:
        self._write(logging.ERROR, kind, sentence)

    def _write(self, level: int, kind: str, sentence: str) -> None:
        ends, lines, suppressed = self._kinds.get(kind, (0.0, 0, 0))
        now = self._monotonic()
        if now >= ends:
            ends, lines = now + PAUSE_S, 0
        if lines >= self._lines_max:
            self._kinds[kind] = ends, lines, suppressed + 1
            return
        self._kinds[kind] = ends, lines + 1, 0
        self._log.log(
            level, "%s%s", one_line(sentence), f" ({suppressed} similar messages were suppressed)" if suppressed else ""
        )
