"""A trace report as one HTML file (U4): tables, and a plot for each topic and group.

The file loads nothing and runs no scripts: style and plots (SVG) are in the file, so it can be mailed and kept, and its
policy forbids everything else. Colours follow the reader's setting, light or dark. Texts from messages are escaped, and
isolated (``bdi``) so that they cannot change the direction of the text around them. Wide tables scroll separately;
plots are side by side if there is room, all with the same time axis.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from datetime import UTC, datetime
from html import escape
from typing import Final

from ternmq.spark.pipelines.trace_report import ConsumeReport, Finding, Percentiles, Point, TraceReport

#: Maximum number of plots: those of the groups with the most messages.
PLOTS_MAX: Final = 24

# About the width of a phone and a third of a desktop screen: the text of a plot has the size of the page's on both.
_WIDTH: Final = 400
_HEIGHT: Final = 200
_RIGHT: Final = 8
_TOP: Final = 12
_BOTTOM: Final = 28
#: Maximum width of a character of the axes' text.
_CHARACTER: Final = 7.5

_UNITS: Final = {"d": 86_400_000, "h": 3_600_000, "min": 60_000, "s": 1_000, "ms": 1}

#: No scripts, requests or frames.
_POLICY: Final = "default-src 'none'; style-src 'unsafe-inline'"

# The shades at a table's ends show that it continues there: those that scroll with it hide the fixed ones.
_STYLE: Final = """
:root { color-scheme: light dark; --ink: #1d2733; --paper: #fff; --soft: #566575; --line: #d9e0e7;
  --p50: #2166ac; --p95: #b34c12; --bars: #ccd6e0; --bad: #b3261e; --shade: #8fa0b088; }
@media (prefers-color-scheme: dark) { :root { --ink: #dde5ec; --paper: #14191f; --soft: #a3b0bd; --line: #323c46;
  --p50: #6cb2f0; --p95: #f0a068; --bars: #35424f; --bad: #ff8a80; --shade: #8fa0b066; } }
body { font: 14px/1.5 system-ui, sans-serif; color: var(--ink); background: var(--paper); margin: 2rem auto;
  max-width: 80rem; padding: 0 1rem; overflow-wrap: anywhere; }
h1 { font-size: 1.4rem; } h2 { font-size: 1.1rem; margin-top: 2rem; } p, figcaption { color: var(--soft); }
p { max-width: 50rem; } code { white-space: pre-wrap; }
div.wide { overflow-x: auto; background:
  linear-gradient(to right, var(--paper) 50%, transparent) left / 3rem 100% no-repeat local,
  linear-gradient(to left, var(--paper) 50%, transparent) right / 3rem 100% no-repeat local,
  linear-gradient(to right, var(--shade), transparent) left / .75rem 100% no-repeat scroll,
  linear-gradient(to left, var(--shade), transparent) right / .75rem 100% no-repeat scroll; }
table { border-collapse: collapse; width: max-content; }
th, td { text-align: left; vertical-align: top; padding: .25rem .75rem .25rem 0; border-bottom: 1px solid var(--line); }
th { vertical-align: bottom; } td { max-width: min(40ch, 60vw); white-space: pre-wrap; }
.n { text-align: right; font-variant-numeric: tabular-nums; } .bad { color: var(--bad); font-weight: 600; }
.of { text-align: center; }
div.plots { display: grid; gap: 1.5rem; grid-template-columns: repeat(auto-fill, minmax(min(100%, 23rem), 1fr)); }
figure { margin: 0; min-width: 0; max-width: 36rem; } svg { display: block; width: 100%; height: auto; }
svg text { fill: var(--soft); font-size: 12px; } .grid { stroke: var(--line); } .bars { fill: var(--bars); }
.p50 { stroke: var(--p50); color: var(--p50); } .p95 { stroke: var(--p95); color: var(--p95); }
path { fill: none; stroke-width: 1.6; } circle { stroke: none; fill: currentColor; }
"""

_FIGURES: Final = ("p50", "p95", "p99", "max")


def page(report: TraceReport) -> str:
    """The whole file."""
    title = f"Trace of {_name(report.trace_topic)}"
    parts = [
        f"<h1>{title}</h1>",
        _about(report),
        "<h2>Sending</h2>",
        _table(
            "Sending",
            ("topic", "producers"),
            ("sent", "not safe", ("send, ms", _FIGURES)),
            ((one.topic, one.group, one.sent, _Bad(one.failed), *_cells(one.cost_ms)) for one in report.sending),
        ),
        "<h2>Consuming</h2>",
        "<p>The time from send to consume compares the clocks of producer and consumer; it is as accurate as they are. "
        f"Slow is more than {_duration(report.slow_ms)}. Waiting: delayed, or sent or tried in the last "
        f"{_duration(report.grace_ms)}.</p>",
        _table(
            "Consuming",
            ("topic", "group"),
            (
                *("messages", "calls", "lost", "failed", "duplicated", "slow", "waiting"),
                *(("from send to consume, ms", _FIGURES), ("consume, ms", _FIGURES)),
            ),
            map(_consuming_row, report.consuming),
        ),
        "<h2>From send to consume</h2>",
        *_figures(report),
        "<h2>Messages</h2>",
        _table(
            "Messages",
            ("problem", "topic", "group", "message id", "keys", "sent (UTC)"),
            ("calls", "successes", ("ms", ("to consume", "consume"))),
            map(_finding_row, report.findings),
        ),
    ]
    if report.bad_samples:
        samples = "".join(f"<li><code>{escape(repr(text))}</code></li>\n" for text in report.bad_samples)
        parts += ["<h2>Unreadable records</h2>", f"<ul>\n{samples}</ul>"]
    head = (
        f'<meta charset="utf-8"><meta http-equiv="Content-Security-Policy" content="{_POLICY}">'
        '<meta name="viewport" content="width=device-width, initial-scale=1">'
        f"<title>Trace of {escape(report.trace_topic)}</title><style>{_STYLE}</style>"
    )
    body = "\n".join(parts)
    return f'<!doctype html>\n<html lang="en"><head>{head}</head>\n<body>\n{body}\n</body></html>\n'


def _about(report: TraceReport) -> str:
    if not report.records:
        return "<p>There are no traces of this time.</p>"
    return (
        f"<p>{_time(report.begin_ms)} to {_time(report.end_ms)} UTC, by the clients' clocks; {report.records:,} "
        f"records, {report.bad:,} of them unreadable; {report.unknown_calls:,} calls with messages whose send is not "
        "in the trace.</p>"
    )


def _name(text: str) -> str:
    return f"<bdi>{escape(text)}</bdi>"


def _time(time_ms: int) -> str:
    try:
        return datetime.fromtimestamp(time_ms / 1000, UTC).strftime("%Y-%m-%d %H:%M:%S")
    except (OverflowError, ValueError, OSError):
        # A client may write any number.
        return str(time_ms)


def _duration(time_ms: int) -> str:
    """In the largest unit that gives a whole number."""
    unit = next((unit for unit, unit_ms in _UNITS.items() if time_ms and time_ms % unit_ms == 0), "ms")
    return f"{time_ms // _UNITS[unit]:,} {unit}"


# --- Tables -----------------------------------------------------------------------------------------------------------


class _Bad(int):
    """A count that should be 0."""


def _consuming_row(one: ConsumeReport) -> list[object]:
    problems = map(_Bad, (one.lost, one.failed, one.duplicated, one.slow))
    figures = (*_cells(one.to_consume_ms), *_cells(one.consume_ms))
    return [one.topic, one.group, one.messages, one.calls, *problems, one.waiting, *figures]


def _finding_row(one: Finding) -> list[object]:
    known = [one.problem, one.topic, one.group, one.message_id, one.keys or "", _time(one.sent_ms)]
    return [*known, one.calls, one.successes, one.to_consume_ms, one.consume_ms]


def _cells(figures: Percentiles) -> tuple[int | None, ...]:
    return figures.p50, figures.p95, figures.p99, figures.max


def _table(
    name: str,
    texts: Sequence[str],
    numbers: Sequence[str | tuple[str, Sequence[str]]],
    rows: Iterable[Sequence[object]],
) -> str:
    """Columns of text, then columns of numbers, some of these under a common heading."""
    body = "".join(f"<tr>{''.join(map(_cell, row))}</tr>\n" for row in rows)
    if not body:
        return "<p>None.</p>"
    upper, lower = [f'<th rowspan="2" scope="col">{text}</th>' for text in texts], []
    for number in numbers:
        match number:
            case str():
                upper.append(f'<th rowspan="2" scope="col" class="n">{number}</th>')
            case above, below:
                upper.append(f'<th colspan="{len(below)}" scope="colgroup" class="of">{above}</th>')
                lower += [f'<th scope="col" class="n">{text}</th>' for text in below]
    head = f"<thead><tr>{''.join(upper)}</tr><tr>{''.join(lower)}</tr></thead>"
    # It can be focused, and so scrolled, by keyboard.
    region = f'<div class="wide" role="region" tabindex="0" aria-label="{name}">'
    return f"{region}<table>{head}\n<tbody>{body}</tbody></table></div>"


def _cell(value: object) -> str:
    match value:
        case None:
            return '<td class="n">–</td>'
        case int():
            is_bad = isinstance(value, _Bad) and value > 0
            return f'<td class="n{" bad" if is_bad else ""}">{value:,}</td>'
        case _:
            return f"<td>{escape(str(value))}</td>"


# --- Plots ------------------------------------------------------------------------------------------------------------


def _figures(report: TraceReport) -> list[str]:
    if not report.points:
        return ["<p>None.</p>"]
    largest = sorted(report.consuming, key=lambda one: -one.messages)[:PLOTS_MAX]
    begin_ms = min(point.begin_ms for point in report.points)
    end_ms = max(point.begin_ms for point in report.points) + report.step_ms
    figures = []
    for one in largest:
        points = [point for point in report.points if (point.topic, point.group) == (one.topic, one.group)]
        most = max(point.messages for point in points)
        # Names last: they may be long.
        label = escape(f"From send to consume, p50 and p95 over time: {one.topic} in {one.group}")
        caption = (
            f'{_name(one.topic)} in {_name(one.group)}: <span class="p50">p50</span> and '
            f'<span class="p95">p95</span>; bars: messages sent, up to {most:,} in {_duration(report.step_ms)}'
        )
        plot = _plot(points, label, begin_ms=begin_ms, end_ms=end_ms, step_ms=report.step_ms)
        figures.append(f"<figure>{plot}<figcaption>{caption}</figcaption></figure>")
    left_out = len(report.consuming) - len(largest)
    some = f" Of the {PLOTS_MAX} groups with the most messages; {left_out:,} are left out." if left_out else ""
    return [f"<p>By the time of the send, in UTC.{some}</p>", '<div class="plots">', *figures, "</div>"]


def _plot(points: Sequence[Point], label: str, *, begin_ms: int, end_ms: int, step_ms: int) -> str:
    """Lines of p50 and p95 over bars with the number of messages."""
    values = [value for point in points for value in (point.p50_ms, point.p95_ms) if value is not None]
    marks, unit = _marks(min(0, *values, 0), max(1, *values, 1))
    low, high = marks[0], marks[-1]
    names = [f"{mark // _UNITS[unit]:,} {unit}" for mark in marks]
    left = round(max(map(len, names)) * _CHARACTER) + 8
    across, floor = _WIDTH - _RIGHT - left, _HEIGHT - _BOTTOM

    def x(time_ms: float) -> float:
        return round(left + (time_ms - begin_ms) / (end_ms - begin_ms) * across, 1)

    def y(value: float) -> float:
        return round(_TOP + (high - value) / (high - low) * (floor - _TOP), 1)

    most = max(point.messages for point in points)
    # Keeps thin bars visible.
    wide = max(0.5, round(across * step_ms / (end_ms - begin_ms) * 0.9, 1))
    bars = ""
    for point in points:
        tall = round(point.messages / most * (floor - _TOP), 1)
        begin = x(point.begin_ms + step_ms * 0.05)
        bars += f'<rect x="{begin}" y="{round(floor - tall, 1)}" width="{wide}" height="{tall}"/>'
    grid = "".join(
        f'<line class="grid" x1="{left}" x2="{_WIDTH - _RIGHT}" y1="{y(mark)}" y2="{y(mark)}"/>'
        f'<text x="{left - 6}" y="{y(mark) + 4}" text-anchor="end">{name}</text>'
        for mark, name in zip(marks, names, strict=True)
    )
    times = f'<text x="{left}" y="{_HEIGHT - 8}">{_time(begin_ms)}</text>' + (
        f'<text x="{_WIDTH - _RIGHT}" y="{_HEIGHT - 8}" text-anchor="end">{_time(end_ms)}</text>'
    )
    lines = ""
    for name in ("p95", "p50"):
        known = [(point.begin_ms, value) for point in points if (value := getattr(point, f"{name}_ms")) is not None]
        lines += _line(name, [(begin, x(begin + step_ms / 2), y(value)) for begin, value in known], step_ms)
    view = f'viewBox="0 0 {_WIDTH} {_HEIGHT}" role="img" aria-label="{label}"'
    return f'<svg {view}><g class="bars">{bars}</g>{grid}{lines}{times}</svg>'


def _marks(low: int, high: int) -> tuple[list[int], str]:
    """About four round values from below ``low`` to above ``high``, in ms, and the unit to show them in."""
    span = high - low
    unit = next((unit for unit, unit_ms in _UNITS.items() if span >= 10 * unit_ms), "ms")
    rough = max(1, span / _UNITS[unit] / 4)
    power = 10 ** (len(str(int(rough))) - 1)
    step = _UNITS[unit] * next(factor * power for factor in (1, 2, 5, 10) if factor * power >= rough)
    return list(range(low // step * step, -(-high // step) * step + 1, step)), unit


def _line(name: str, places: Sequence[tuple[int, float, float]], step_ms: int) -> str:
    """Dots at (time, x, y), with lines only between neighbouring steps: there is no data between others."""
    way, before = [], None
    for time_ms, x, y in places:
        way.append(f"{'L' if before is not None and time_ms - before == step_ms else 'M'}{x} {y}")
        before = time_ms
    dots = "".join(f'<circle cx="{x}" cy="{y}" r="2"/>' for _, x, y in places)
    return f'<g class="{name}"><path d="{" ".join(way)}"/>{dots}</g>' if places else ""
