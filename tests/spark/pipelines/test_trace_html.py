"""The page of a trace report (U4)."""

from __future__ import annotations

import xml.etree.ElementTree as ET

import pytest

from ternmq.spark.pipelines.trace_html import PLOTS_MAX, page
from ternmq.spark.pipelines.trace_report import ConsumeReport, Finding, Percentiles, Point, SendReport, TraceReport

FIGURES = Percentiles(5, 60, 70, 1_234)
NOTHING = Percentiles(None, None, None, None)


def consuming(group: str, *, messages: int = 9) -> ConsumeReport:
    return ConsumeReport("orders", group, messages, 9, 2, 0, 0, 0, 0, FIGURES, NOTHING)


def report(**changes: object) -> TraceReport:
    evil = "<script>alert(1)</script>"
    fields: dict[str, object] = {
        "trace_topic": "traces",
        "begin_ms": 1_794_830_400_000,
        "end_ms": 1_794_830_460_000,
        "records": 7,
        "bad": 1,
        "bad_samples": (f"Pub\x01{evil}",),
        "unknown_calls": 0,
        "slow_ms": 1_000,
        "grace_ms": 60_000,
        "step_ms": 1_000,
        "sending": (SendReport("orders", "shop", 9, 0, FIGURES),),
        "consuming": (consuming(evil),),
        "findings": (Finding("lost", "orders", evil, "M1", evil, 1_794_830_400_000, 0, 0, None, None),),
        "points": (
            Point("orders", evil, 1_794_830_400_000, 4, -3, 20),
            Point("orders", evil, 1_794_830_405_000, 5, None, None),
            Point("orders", evil, 1_794_830_406_000, 5, 7, 1_000),
        ),
    }
    return TraceReport(**(fields | changes))  # type: ignore[arg-type]


def parsed(text: str) -> ET.Element:
    """The page as XML: every tag but those without an end is closed."""
    body = text[text.index("<body>") :].removesuffix("</html>\n")
    return ET.fromstring(body)


def test_a_page_stands_alone_and_escapes_what_came_from_messages() -> None:
    """U4: no scripts, nothing from elsewhere; light and dark."""
    text = page(report())
    body = parsed(text)
    assert "<script" not in text
    assert not [mark for mark in ("http:", "https:", "src=", "@import", "url(") if mark in text]
    assert "prefers-color-scheme: dark" in text
    cells = [cell.text for cell in body.iter("td")]
    assert {"lost", "M1", "1,234", "<script>alert(1)</script>"} <= set(cells)
    assert ["2"] == [cell.text for cell in body.iter("td") if "bad" in cell.get("class", "")]


def test_plots_stay_inside_their_frame() -> None:
    """U4: a bar for each step; a dot where a time is known, below zero as well."""
    (svg,) = parsed(page(report())).iter("svg")
    assert 3 == len(list(svg.iter("rect")))
    assert [2, 2] == [
        len(list(group.iter("circle"))) for group in svg.iter("g") if group.get("class") in ("p50", "p95")
    ]
    _, _, width, height = map(float, svg.get("viewBox", "").split())
    for dot in svg.iter("circle"):
        assert 0 <= float(dot.get("cx", "-1")) <= width
        assert 0 <= float(dot.get("cy", "-1")) <= height


def test_a_line_joins_only_neighbouring_steps() -> None:
    """U4: a line over a time without messages would show data that does not exist."""
    begin_ms = 1_794_830_400_000
    points = tuple(Point("orders", "g", begin_ms + step * 1_000, 1, 7, None) for step in (0, 1, 5, 6, 7, 30))
    (path,) = parsed(page(report(consuming=(consuming("g"),), points=points))).iter("path")
    assert "MLMLLM" == "".join(letter for letter in path.get("d", "") if letter.isalpha())


@pytest.mark.parametrize(
    ("values", "labels"),
    [
        ((0, 0), ["0 ms", "1 ms"]),
        ((3, 58), ["0 ms", "20 ms", "40 ms", "60 ms"]),
        ((-3, 9_000), ["-5,000 ms", "0 ms", "5,000 ms", "10,000 ms"]),
        ((0, 10_001), ["0 s", "5 s", "10 s", "15 s"]),
        ((0, 36_000_000), ["0 h", "5 h", "10 h"]),
        ((0, 2**62), ["0 d", "20,000,000,000 d", "40,000,000,000 d", "60,000,000,000 d"]),
    ],
)
def test_marks_of_an_axis_are_round_and_have_a_unit(values: tuple[int, int], labels: list[str]) -> None:
    """U4: whatever clients wrote."""
    points = (Point("orders", "g", 1_794_830_400_000, 1, *values),)
    (svg,) = parsed(page(report(consuming=(consuming("g"),), points=points))).iter("svg")
    assert labels == [text.text for text in svg.iter("text") if text.get("text-anchor") == "end"][:-1]


def test_the_groups_with_the_most_messages_have_plots() -> None:
    """U4: and the page says that others have none."""
    names = [f"g{number}" for number in range(PLOTS_MAX + 2)]
    many = report(
        consuming=tuple(consuming(name, messages=number) for number, name in enumerate(names)),
        points=tuple(Point("orders", name, 1_794_830_400_000, 1, 1, 1) for name in names),
    )
    body = parsed(page(many))
    shown = [caption.findall("bdi")[1].text for caption in body.iter("figcaption")]
    assert names[:1:-1] == shown
    assert [text for text in body.itertext() if "2 are left out" in text]


def test_an_empty_report_is_a_page_as_well() -> None:
    """U4."""
    empty = page(report(records=0, sending=(), consuming=(), findings=(), points=(), bad=0, bad_samples=()))
    assert 4 == empty.count("<p>None.</p>")
    assert "There are no traces of this time." in empty
