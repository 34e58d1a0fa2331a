"""Log lines that any client can cause (B5): the first ones of a kind are written, the others are counted."""

from __future__ import annotations

import logging

import pytest

from ternmq.rare_log import PAUSE_S, RareLog
from tests.manual_clock import ManualClock

log = logging.getLogger("ternmq.test")


def test_lines_of_a_kind_are_counted_and_not_written_for_a_while(caplog: pytest.LogCaptureFixture) -> None:
    """B5: a client that fails thousands of times a second does not fill the disk with log lines."""
    clock = ManualClock()
    rare = RareLog(log, clock.monotonic, lines_max=2)
    with caplog.at_level(logging.INFO):
        for number in range(5):
            rare.warning("refused", f"refusing {number}")
        rare.error("dropped", "another kind")
        clock.advance(PAUSE_S)
        rare.info("refused", "refusing 5")
        rare.warning("refused", "refusing 6")

    assert [
        ("WARNING", "refusing 0"),
        ("WARNING", "refusing 1"),
        ("ERROR", "another kind"),
        ("INFO", "refusing 5 (3 similar messages were suppressed)"),
        ("WARNING", "refusing 6"),
    ] == [(record.levelname, record.getMessage()) for record in caplog.records]


def test_what_clients_send_breaks_no_line(caplog: pytest.LogCaptureFixture) -> None:
    """N1: no forged lines, nothing that a terminal obeys, no megabytes."""
    rare = RareLog(log, ManualClock().monotonic, lines_max=2)
    rare.warning("refused", "refusing a\nroot: all is well\x1b[2J\u202e")
    rare.warning("refused", "x" * 100_000)

    assert "refusing a?root: all is well?[2J?" == caplog.messages[0]
    assert len(caplog.messages[1]) < 3000
