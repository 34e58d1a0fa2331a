"""The page of a trace report as a browser shows it (U4): Debian's Chromium, driven by Playwright."""

from __future__ import annotations

import re
import shutil
from collections.abc import Callable, Iterator
from itertools import combinations
from pathlib import Path
from typing import Final, Literal, NamedTuple

import pytest
from playwright.sync_api import Browser, Dialog, Page, ViewportSize, sync_playwright

from ternmq.spark.pipelines.trace_html import page
from ternmq.spark.pipelines.trace_report import ConsumeReport, Finding, Percentiles, Point, SendReport, TraceReport
from tests.spark.pipelines.test_trace_html import FIGURES, NOTHING, report

Open = Callable[..., Page]

BEGIN_MS: Final = 1_794_830_400_000
STEP_MS: Final = 60_000
#: What names may try: to run, to load, to end what they stand in, to turn the text round, to push the page wide.
HOSTILE: Final = (
    "<script>alert(1)</script>",
    '"><img src="http://127.0.0.1:1/x" onerror="alert(2)">',
    "</title></style></svg><h1>&amp;",
    "\u202eorders",
    "t" * 200,
    " two  spaces\tand a tab",
)
NAMES: Final = ("orders", "payments", *HOSTILE)


def full_report() -> TraceReport:
    """Each topic with a group of another's name; plots with gaps, of fast, slow and early (below 0) messages."""
    pairs = list(zip(NAMES, reversed(NAMES), strict=True))
    return report(
        trace_topic=HOSTILE[2],
        end_ms=BEGIN_MS + 60 * STEP_MS,
        step_ms=STEP_MS,
        sending=tuple(SendReport(topic, group, 48_210, 3, FIGURES) for topic, group in pairs),
        consuming=tuple(
            ConsumeReport(topic, group, 48_210 - number, 50_000, 2, 0, 7, 1, 12, FIGURES, NOTHING)
            for number, (topic, group) in enumerate(pairs)
        ),
        findings=tuple(
            Finding("slow", topic, group, f"C0A80007{number:024X}", group, BEGIN_MS, 2, 1, 12_345, None)
            for number, (topic, group) in enumerate(pairs)
        ),
        points=tuple(
            Point(topic, group, BEGIN_MS + step * STEP_MS, 100 + step, 10**number, 3 * 10**number + step)
            if step % 20
            else Point(topic, group, BEGIN_MS + step * STEP_MS, 9, None, -(10**number))
            for number, (topic, group) in enumerate(pairs)
            for step in range(60)
            if not 30 < step < 40
        ),
    )


class Box(NamedTuple):
    left: float
    top: float
    right: float
    bottom: float


#: Of plots, and of the texts in each.
BOXES: Final = """plots => plots.map(plot => [plot, ...plot.querySelectorAll("text")].map(one => {
    const box = one.getBoundingClientRect()
    return [box.left, box.top, box.right, box.bottom]
}))"""


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    chromium = shutil.which("chromium")
    assert chromium, "this test needs Chromium; script/bootstrap browser installs it"
    with sync_playwright() as playwright:
        running = playwright.chromium.launch(executable_path=chromium)
        yield running
        running.close()


@pytest.fixture
def open_page(browser: Browser, tmp_path: Path) -> Iterator[Open]:
    """Opens a report's page. Whatever the browser complains of, asks for or is made to say fails the test."""
    troubles: list[str] = []
    context = browser.new_context()

    def open_(told: TraceReport, *, width: int = 1280, scheme: Literal["light", "dark"] = "light") -> Page:
        file = tmp_path / "report.html"
        file.write_text(page(told), encoding="utf-8")
        opened = context.new_page()
        opened.on("console", lambda message: troubles.append(message.text))
        opened.on("pageerror", lambda error: troubles.append(str(error)))
        opened.on("request", lambda request: troubles.append(request.url) if request.url != file.as_uri() else None)
        opened.set_viewport_size(ViewportSize(width=width, height=900))
        opened.emulate_media(color_scheme=scheme)
        opened.goto(file.as_uri())
        return opened

    def dismiss(dialog: Dialog) -> None:
        troubles.append(dialog.message)
        dialog.dismiss()

    context.on("dialog", dismiss)
    yield open_
    context.close()
    assert [] == troubles


def rows(opened: Page, name: str) -> list[list[str]]:
    """A table's cells, with their white space."""
    script = "rows => rows.map(row => [...row.cells].map(cell => cell.textContent))"
    found: list[list[str]] = opened.get_by_role("region", name=name).locator("tbody tr").evaluate_all(script)
    return found


def columns(figures: Percentiles) -> list[str]:
    values = (figures.p50, figures.p95, figures.p99, figures.max)
    return ["–" if value is None else f"{value:,}" for value in values]


def luminance(colour: str) -> float:
    """WCAG's, of «rgb(…)»."""
    parts = [int(part) / 255 for part in re.findall(r"\d+", colour)]
    red, green, blue = (part / 12.92 if part <= 0.04045 else ((part + 0.055) / 1.055) ** 2.4 for part in parts)
    return 0.2126 * red + 0.7152 * green + 0.0722 * blue


def test_tables_say_what_the_report_does(open_page: Open) -> None:
    """U4: hostile names are text as well."""
    told = full_report()
    opened = open_page(told)
    assert rows(opened, "Sending") == [
        [one.topic, one.group, "48,210", "3", *columns(one.cost_ms)] for one in told.sending
    ]
    counts = ("50,000", "2", "0", "7", "1", "12")
    assert rows(opened, "Consuming") == [
        [one.topic, one.group, f"{one.messages:,}", *counts, *columns(one.to_consume_ms), *columns(one.consume_ms)]
        for one in told.consuming
    ]
    assert rows(opened, "Messages") == [
        ["slow", one.topic, one.group, one.message_id, one.keys, "2026-11-16 12:00:00", "2", "1", "12,345", "–"]
        for one in told.findings
    ]


def test_hostile_names_are_only_shown(open_page: Open) -> None:
    """U4: none becomes an element, none reaches out of its place."""
    opened = open_page(full_report())
    assert f"Trace of {HOSTILE[2]}" == opened.title()
    assert f"Trace of {HOSTILE[2]}" == opened.get_by_role("heading", level=1).text_content()
    assert 0 == opened.locator("script, img, h1 ~ h1").count()
    captions = opened.locator("figcaption").all_text_contents()
    assert [f"{topic} in {group}: p50 and" for topic, group in zip(NAMES, reversed(NAMES), strict=True)] == [
        re.sub(r" p95;.*", "", caption) for caption in captions
    ]
    # Behind a name that turns its text round, the words still run to the right.
    turned = opened.locator("figcaption").nth(NAMES.index("\u202eorders"))
    p50, p95 = (turned.locator(f".{name}").bounding_box() for name in ("p50", "p95"))
    assert p50 is not None
    assert p95 is not None
    assert (p50["y"], p50["x"]) < (p95["y"], p95["x"])


@pytest.mark.parametrize("width", [400, 1280])
def test_nothing_is_cut_off_or_covered(open_page: Open, width: int) -> None:
    """U4: the page never scrolls sideways, only its tables do; labels of a plot can be read, and lie in its frame."""
    opened = open_page(full_report(), width=width)
    assert width == opened.evaluate("document.documentElement.scrollWidth")
    plots = opened.get_by_role("img", name="From send to consume")
    assert len(NAMES) == plots.count()
    for plot in plots.evaluate_all(BOXES):
        frame, *labels = (Box(*sides) for sides in plot)
        assert frame.right - frame.left >= 300
        assert len(labels) >= 4
        for label in labels:
            assert label.bottom - label.top >= 10
            assert frame.left <= label.left < label.right <= frame.right
            assert frame.top <= label.top < label.bottom <= frame.bottom
        for one, other in combinations(labels, 2):
            beside = one.right <= other.left or other.right <= one.left
            assert beside or one.bottom <= other.top or other.bottom <= one.top


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_text_stands_out_from_the_paper(open_page: Open, scheme: Literal["light", "dark"]) -> None:
    """U4: 4.5 to 1, as WCAG 2 asks for text (1.4.3)."""
    opened = open_page(full_report(), scheme=scheme)
    paper = luminance(opened.locator("body").evaluate("body => getComputedStyle(body).backgroundColor"))
    assert (paper < 0.5) == (scheme == "dark")
    for text in ("h1", "p", "th", "td", "td.bad", "code", "figcaption", "figcaption .p50", "figcaption .p95", "text"):
        colour = "one => { const style = getComputedStyle(one); return one.closest('svg') ? style.fill : style.color }"
        ink = luminance(opened.locator(text).first.evaluate(colour))
        assert (max(ink, paper) + 0.05) / (min(ink, paper) + 0.05) >= 4.5, text


def test_a_page_of_nothing_opens(open_page: Open) -> None:
    """U4"""
    opened = open_page(report(records=0, sending=(), consuming=(), findings=(), points=(), bad_samples=()), width=400)
    assert "There are no traces of this time." == opened.locator("h1 + p").text_content()
    assert 400 == opened.evaluate("document.documentElement.scrollWidth")


def test_scripts_and_requests_are_forbidden(browser: Browser, tmp_path: Path) -> None:
    """U4: were a name not escaped, it would still do nothing."""
    file = tmp_path / "report.html"
    evil = "<img src='http://127.0.0.1:1/x'><script>document.title = 'run'</script></body>"
    file.write_text(page(report()).replace("</body>", evil), encoding="utf-8")
    with browser.new_page() as opened:
        refused: list[str] = []
        opened.on("console", lambda message: refused.append(message.text))
        opened.goto(file.as_uri())
        assert "Trace of traces" == opened.title()
    assert 2 == sum("Content Security Policy" in line for line in refused)
