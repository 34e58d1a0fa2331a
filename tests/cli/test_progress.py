"""Bars for long work, and who hears of a recovery (T1, C8)."""

from __future__ import annotations

import io

import pytest

from ternmq.cli.progress import LONG_BYTES, late_bar
from ternmq.cli.supervise import BrokerReport
from ternmq.cli.supervised import _steps


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


@pytest.mark.parametrize(("stream", "total", "shown"), [(Terminal(), LONG_BYTES, True), (Terminal(), 100, False)])
def test_a_bar_comes_when_work_is_long(
    stream: Terminal, total: int, shown: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """C8: on a terminal; ordinary starts show nothing."""
    monkeypatch.setattr("sys.stderr", stream)
    with late_bar("recover") as tell:
        tell(0, total)
        tell(total // 2, total)
        tell(total, total)
        text = stream.getvalue()
        tell(0, 100)
        assert text == stream.getvalue()

    assert shown is ("recover" in text)


def test_files_and_programs_see_no_bar(capsys: pytest.CaptureFixture[str]) -> None:
    """T1."""
    with late_bar("recover") as tell:
        tell(0, LONG_BYTES)
        tell(LONG_BYTES, LONG_BYTES)

    assert ("", "") == capsys.readouterr()


def test_a_supervised_broker_tells_of_a_long_recovery_in_steps() -> None:
    """C8: few enough for a pipe that is not read yet."""
    told: list[BrokerReport] = []
    on_progress = _steps(told.append)
    on_progress(100, 100)
    assert [] == told
    total = 10 * LONG_BYTES
    for done in range(0, total, 1 << 20):
        on_progress(done, total)
    on_progress(total, total)

    assert 90 <= len(told) <= 101
    assert BrokerReport(done=total, total=total) == told[-1]
