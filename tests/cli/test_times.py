"""Times on the command line (F6, T1)."""

from __future__ import annotations

import pytest

from ternmq.cli.times import format_ms, parse_time
from ternmq.errors import ConfigError

NOW_MS = 1_800_000_000_000


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("15m", NOW_MS - 15 * 60_000),
        ("90s", NOW_MS - 90_000),
        ("2h", NOW_MS - 2 * 3_600_000),
        ("3d", NOW_MS - 3 * 86_400_000),
        ("99999d", 0),
        ("1700000000123", 1_700_000_000_123),
        ("2023-11-14T22:13:20+00:00", 1_700_000_000_000),
        ("2023-11-14 22:13:20.5Z", 1_700_000_000_500),
    ],
)
def test_a_time_is_read_in_several_forms(text: str, expected: int) -> None:
    assert expected == parse_time(text, now_ms=NOW_MS)


@pytest.mark.parametrize("text", ["", "soon", "12", "2023-13-01", "15 m", "-5m", "99999999999d", "9" * 20])
def test_what_is_no_time_is_refused_with_the_forms(text: str) -> None:
    with pytest.raises(ConfigError, match="is not a valid time; expected 2026-01-31T12:00, 15m"):
        parse_time(text, now_ms=NOW_MS)


def test_a_time_without_zone_is_local_and_reads_back() -> None:
    text = format_ms(1_700_000_000_123)

    assert 1_700_000_000_123 == parse_time(text, now_ms=NOW_MS)


def test_never_is_a_dash() -> None:
    assert "-" == format_ms(0)
