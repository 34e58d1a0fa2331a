"""A trace report as one HTML file (U4): tables, and a plot for each topic and group.

Nothing is loaded from anywhere: style and plots (SVG) stand in the file, so it can be mailed and kept. Colours follow
the reader's setting, light or dark. Whatever came from messages is escaped.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from datetime import UTC, datetime
from html import escape
from typing import Final

from ternmq.spark.pipelines.trace_report import Consuming, Finding, Percentiles, Point, TraceReport

#: Plots, at most: those of the groups with the most messages.
PLOTS_MAX: Final = 24

_WIDTH: Final = 640
_HEIGHT: Final = 180
_LEFT: Final = 56
_RIGHT: Final = 8
_TOP: Final = 12
_BOTTOM: Final = 24

_STYLE: Final = """
:root { color-scheme: light dark; --ink: #1d2733; --paper: #fff; --soft: #68788a; --line: #d9e0e7;
  --p50: #2166ac; --p95: #c2571a; --bars: #e3e9ef; --bad: #b3261e; }
@media (prefers-color-scheme: dark) { :root { --ink: #dde5ec; --paper: #14191f; --soft: #93a1af; --line: #323c46;
  --p50: #6cb2f0; --p95: #f0a068; --bars: #26303a; --bad: #ff8a80; } }
body { font: 14px/1.5 system-ui, sans-serif; color: var(--ink); background: var(--paper); margin: 2rem auto;
  max-width: 80rem; padding: 0 1rem; }
h1 { font-size: 1.4rem; } h2 { font-size: 1.1rem; margin-top: 2rem; } p, figcaption { color: var(--soft); }
div.wide { overflow-x: auto; } table { border-collapse: collapse; }
th, td { text-align: left; padding: .25rem .75rem .25rem 0; border-bottom: 1px solid var(--line); }
td.n, th.n { text-align: right; font-variant-numeric: tabular-nums; } td.bad { color: var(--bad); font-weight: 600; }
figure { display: inline-block; margin: 0 1.5rem 1.5rem 0; max-width: 100%; } svg { max-width: 100%; height: auto; }
svg text { fill: var(--soft); font-size: 11px; } .grid { stroke: var(--line); } .bars rect { fill: var(--bars); }
.p50 { stroke: var(--p50); color: var(--p50); } .p95 { stroke: var(--p95); color: var(--p95); }
path { fill: none; stroke-width: 1.6; } circle { stroke: none; fill: currentColor; }
"""

_CONSUMING: Final = ("topic", "group", "messages", "calls", "lost", "failed", "duplicated", "slow", "waiting")
_FINDING: Final = (
    *("problem", "topic", "group", "message id", "keys", "sent"),
    *("calls", "successes", "to consume ms", "consume ms"),
)


def page(report: TraceReport) -> str:
    """The whole file."""
    spans = f"{_time(report.begin_ms)} to {_time(report.end_ms)}" if report.end_ms else "nothing"
    parts = [
        f"<h1>Trace of {escape(report.trace_topic)}</h1>",
        f"<p>{spans} UTC, by the clients' clocks; {report.records:,} records, {report.bad:,} of them unreadable; "
        f"{report.unknown_calls:,} calls with messages whose send is not in the trace.</p>",
        "<h2>Sending</h2>",
        _table(
            ("topic", "producers", "sent", "not safe", *_headings("send")),
            ((one.topic, one.group, one.sent, _Bad(one.failed), *_cells(one.cost_ms)) for one in report.sending),
        ),
        "<h2>Consuming</h2>",
        "<p>From send to consume is told by two clocks, the producer's and the consumer's, as right as they agree. "
        f"Slow is more than {report.slow_ms:,} ms. Waiting: delayed, or sent or tried in the last "
        f"{report.grace_ms:,} ms.</p>",
        _table(
            (*_CONSUMING, *_headings("send to consume"), *_headings("consume")), map(_consuming_row, report.consuming)
        ),
        "<h2>From send to consume</h2>",
        *_figures(report),
        "<h2>Messages</h2>",
        _table(_FINDING, map(_finding_row, report.findings)),
    ]
    if report.bad_samples:
        parts += ["<h2>Unreadable records</h2>", _table(("text",), ((repr(text),) for text in report.bad_samples))]
    title = f"<title>Trace of {escape(report.trace_topic)}</title>"
    view = '<meta name="viewport" content="width=device-width, initial-scale=1">'
    head = f'<!doctype html>\n<html lang="en"><head><meta charset="utf-8">{view}{title}<style>{_STYLE}</style></head>'
    return f"{head}\n<body>\n" + "\n".join(parts) + "\n</body></html>\n"


# --- Tables -----------------------------------------------------------------------------------------------------------


class _Bad(int):
    """A count that should be 0."""


def _consuming_row(one: Consuming) -> list[object]:
    problems = map(_Bad, (one.lost, one.failed, one.duplicated, one.slow))
    figures = (*_cells(one.to_consume_ms), *_cells(one.consume_ms))
    return [one.topic, one.group, one.messages, one.calls, *problems, one.waiting, *figures]


def _finding_row(one: Finding) -> list[object]:
    known = [one.problem, one.topic, one.group, one.message_id, one.keys, _time(one.sent_ms)]
    return [*known, one.calls, one.successes, one.to_consume_ms, one.consume_ms]


def _table(headings: Sequence[str], rows: Iterable[Sequence[object]]) -> str:
    body = "".join(f"<tr>{''.join(map(_cell, row))}</tr>\n" for row in rows)
    if not body:
        return "<p>None.</p>"
    head = "".join(f"<th>{escape(heading)}</th>" for heading in headings)
    return f'<div class="wide"><table><tr>{head}</tr>\n{body}</table></div>'


def _cell(value: object) -> str:
    match value:
        case None:
            return '<td class="n">–</td>'
        case int():
            is_bad = isinstance(value, _Bad) and value > 0
            return f'<td class="n{" bad" if is_bad else ""}">{value:,}</td>'
        case _:
            return f"<td>{escape(str(value))}</td>"


def _headings(what: str) -> tuple[str, ...]:
    return f"{what} p50 ms", "p95", "p99", "max"


def _cells(figures: Percentiles) -> tuple[int | None, ...]:
    return figures.p50, figures.p95, figures.p99, figures.max


def _time(time_ms: int) -> str:
    try:
        return datetime.fromtimestamp(time_ms / 1000, UTC).strftime("%Y-%m-%d %H:%M:%S")
    except (OverflowError, ValueError, OSError):
        # A client may write any number.
        return str(time_ms)


# --- Plots ------------------------------------------------------------------------------------------------------------


def _figures(report: TraceReport) -> list[str]:
    largest = sorted(report.consuming, key=lambda one: -one.messages)[:PLOTS_MAX]
    figures = []
    for one in largest:
        points = [point for point in report.points if (point.topic, point.group) == (one.topic, one.group)]
        caption = (
            f'{escape(one.topic)} in {escape(one.group)}: <span class="p50">p50</span> and '
            f'<span class="p95">p95</span> in ms; bars: messages sent, a step is {report.step_ms // 1000} s'
        )
        figures.append(f"<figure>{_plot(points, report.step_ms)}<figcaption>{caption}</figcaption></figure>")
    return figures or ["<p>None.</p>"]


def _plot(points: Sequence[Point], step_ms: int) -> str:
    """Lines of p50 and p95 over bars of the messages' number."""
    begin, end = points[0].begin_ms, points[-1].begin_ms + step_ms
    values = [value for point in points for value in (point.p50_ms, point.p95_ms) if value is not None]
    low, high = min(0, *values, 0), max(1, *values, 1)
    most = max(point.messages for point in points)

    def x(time_ms: float) -> float:
        return round(_LEFT + (time_ms - begin) / (end - begin) * (_WIDTH - _LEFT - _RIGHT), 1)

    def y(value: float) -> float:
        return round(_TOP + (high - value) / (high - low) * (_HEIGHT - _TOP - _BOTTOM), 1)

    floor, wide = _HEIGHT - _BOTTOM, round((_WIDTH - _LEFT - _RIGHT) * step_ms / (end - begin) * 0.9, 1)
    bars = []
    for point in points:
        tall = round(point.messages / most * (floor - _TOP), 1)
        bars.append(f'<rect x="{x(point.begin_ms)}" y="{round(floor - tall, 1)}" width="{wide}" height="{tall}"/>')
    marks = sorted({low, 0, (low + high) // 2, high})
    grid = "".join(
        f'<line class="grid" x1="{_LEFT}" x2="{_WIDTH - _RIGHT}" y1="{y(mark)}" y2="{y(mark)}"/>'
        f'<text x="{_LEFT - 6}" y="{y(mark) + 4}" text-anchor="end">{mark:,}</text>'
        for mark in marks
    )
    times = f'<text x="{_LEFT}" y="{_HEIGHT - 6}">{_time(begin)}</text>' + (
        f'<text x="{_WIDTH - _RIGHT}" y="{_HEIGHT - 6}" text-anchor="end">{_time(end)}</text>'
    )
    lines = "".join(
        _line(name, [(x(point.begin_ms + step_ms / 2), y(value)) for point, value in known])
        for name, known in (
            ("p95", [(point, point.p95_ms) for point in points if point.p95_ms is not None]),
            ("p50", [(point, point.p50_ms) for point in points if point.p50_ms is not None]),
        )
    )
    size = f'viewBox="0 0 {_WIDTH} {_HEIGHT}" width="{_WIDTH}" height="{_HEIGHT}"'
    return f'<svg {size} role="img"><g class="bars">{"".join(bars)}</g>{grid}{lines}{times}</svg>'


def _line(name: str, places: Sequence[tuple[float, float]]) -> str:
    way = " ".join(f"{'L' if number else 'M'}{x} {y}" for number, (x, y) in enumerate(places))
    dots = "".join(f'<circle cx="{x}" cy="{y}" r="2"/>' for x, y in places)
    return f'<g class="{name}"><path d="{way}"/>{dots}</g>' if places else ""
