"""The page of a trace report (U4)."""

from __future__ import annotations

import xml.etree.ElementTree as ET

from ternmq.spark.pipelines.trace_html import page
from ternmq.spark.pipelines.trace_report import Consuming, Finding, Percentiles, Point, Sending, TraceReport

FIGURES = Percentiles(5, 60, 70, 1_234)
NOTHING = Percentiles(None, None, None, None)


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
        "sending": (Sending("orders", "shop", 9, 0, FIGURES),),
        "consuming": (Consuming("orders", evil, 9, 9, 2, 0, 0, 0, 0, FIGURES, NOTHING),),
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
    """U4: a bar for each step; lines leave out steps without a time; below zero is below the axis."""
    (svg,) = parsed(page(report())).iter("svg")
    assert 3 == len(list(svg.iter("rect")))
    assert [2, 2] == [
        len(list(group.iter("circle"))) for group in svg.iter("g") if group.get("class") in ("p50", "p95")
    ]
    for dot in svg.iter("circle"):
        assert 0 <= float(dot.get("cx", "-1")) <= 640
        assert 0 <= float(dot.get("cy", "-1")) <= 180


def test_an_empty_report_is_a_page_as_well() -> None:
    """U4."""
    empty = report(begin_ms=0, end_ms=0, sending=(), consuming=(), findings=(), points=(), bad=0, bad_samples=())
    assert 4 == page(empty).count("<p>None.</p>")
