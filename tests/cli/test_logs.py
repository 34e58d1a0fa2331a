"""Log lines: a constant event and its fields (T4)."""

from __future__ import annotations

import logging
import re
import sys

import pytest

from ternmq.cli.logs import FieldsFormatter, set_up
from ternmq.errors import ConfigError


def record(**extra: object) -> logging.LogRecord:
    return logging.getLogger("ternmq.test").makeRecord(
        "ternmq.test", logging.WARNING, "file", 1, "slave caught up", (), None, extra=extra
    )


def test_fields_follow_the_event() -> None:
    line = FieldsFormatter("broker-a").format(record(slave="10.0.0.1:10911", lag_bytes=0, why="a b", empty=""))

    assert re.fullmatch(
        r"\d{4}-\d\d-\d\d \d\d:\d\d:\d\d\.\d{3} WARNING broker-a ternmq\.test slave caught up "
        r"slave=10\.0\.0\.1:10911 lag_bytes=0 why='a b' empty=''",
        line,
    )


def test_an_error_brings_its_traceback() -> None:
    failed = record()
    try:
        raise ValueError("broken")
    except ValueError:
        failed.exc_info = sys.exc_info()

    assert "ValueError: broken" in FieldsFormatter().format(failed)


def test_an_unknown_level_lists_the_known_ones() -> None:
    with pytest.raises(ConfigError, match="invalid log level 'loud': expected one of debug, info, warning, error"):
        set_up("loud")
