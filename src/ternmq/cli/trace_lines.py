"""The path of a message as a timeline for a terminal (Q2): steps in, lines out. It knows neither terminal nor cluster.

::

    2026-01-31
    12:00:00.250        0 ms  ● sent by shop                                 2 ms  success
                              │ 10.0.0.7:51234 → 10.0.0.1:10911
    12:00:00.262      +12 ms  ○ consumed by billing                          5 ms  failed
                              │ 10.0.0.9:40112
    12:00:10.301     +10.1 s  ● consumed (attempt 2) by billing              4 ms  success
                                10.0.0.9:40112
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from ternmq.admin.traces import TraceStep
from ternmq.cli.times import format_ms

_BOLD: Final = "\x1b[1m"
_DIM: Final = "\x1b[2m"
_GREEN: Final = "\x1b[32m"
_RED: Final = "\x1b[31m"
_PLAIN: Final = "\x1b[0m"
#: Results that are as they should be.
_GOOD: Final = frozenset({"success", "committed"})
_TIME_WIDTH: Final = 12
_AFTER_WIDTH: Final = 10
#: Time, distance and mark, with the blanks between them.
_INDENT: Final = _TIME_WIDTH + 1 + _AFTER_WIDTH + 2
_WHAT_LEAST: Final = 20


def timeline(steps: Sequence[TraceStep], *, width: int) -> list[str]:
    """The lines, at most ``width`` characters wide where that is possible; a new day has a line of its own."""
    first_ms = next((step.time_ms for step in steps if step.time_ms is not None), None)
    ends = [_end(step) for step in steps]
    end_width = max(map(len, ends), default=0)
    what_width = max(width - _INDENT - 2 - 2 - end_width, _WHAT_LEAST)
    lines = []
    day = ""
    for number, (step, end) in enumerate(zip(steps, ends, strict=True), 1):
        date, time = format_ms(step.time_ms).split(" ") if step.time_ms is not None else (day, "-")
        if date != day:
            day = date
            lines.append(f"{_BOLD}{date}{_PLAIN}")
        after = "" if step.time_ms is None or first_ms is None else after_text(step.time_ms - first_ms)
        is_good = step.result in _GOOD
        mark, colour = ("●", _GREEN) if is_good else ("○", _RED)
        what = _cut(_what(step), what_width)
        lines.append(
            f"{time:<{_TIME_WIDTH}} {after:>{_AFTER_WIDTH}}  {colour}{mark}{_PLAIN} {what:<{what_width}}  "
            f"{colour if not is_good else ''}{end:>{end_width}}{_PLAIN if not is_good else ''}"
        )
        bar = "│" if number < len(steps) else " "
        lines.append(f"{' ' * _INDENT}{bar} {_DIM}{_cut(_detail(step), width - _INDENT - 2)}{_PLAIN}")
    return lines


def after_text(span_ms: int) -> str:
    """A distance in time, in the largest unit that fits: clocks of clients may differ, so it may be negative."""
    sign = "-" if span_ms < 0 else "+" if span_ms else ""
    size = abs(span_ms)
    if size < 1_000:
        return f"{sign}{size} ms"
    seconds = size / 1000
    if seconds < 120:
        return f"{sign}{seconds:.1f} s"
    minutes = seconds / 60
    return f"{sign}{minutes:.1f} min" if minutes < 120 else f"{sign}{minutes / 60:.1f} h"


def _what(step: TraceStep) -> str:
    attempt = f" (attempt {step.attempt})" if (step.attempt or 1) > 1 else ""
    return f"{step.what}{attempt}{f' by {step.group}' if step.group else ''}"


def _detail(step: TraceStep) -> str:
    parts = [step.client if step.where is None else f"{step.client} → {step.where}"]
    if step.topic:
        parts.append(f"topic {step.topic}")
    if step.keys and step.topic:
        parts.append(f"keys {step.keys}")
    return ", ".join(parts)


def _end(step: TraceStep) -> str:
    return f"{'' if step.took_ms is None else f'{step.took_ms:,} ms  '}{step.result}"


def _cut(text: str, width: int) -> str:
    return text if len(text) <= width else text[: max(width - 1, 0)] + "…"
