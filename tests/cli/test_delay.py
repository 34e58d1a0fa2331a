"""``tern delay`` and ``tern send --delay | --at`` with the real program (I2, T1)."""

from __future__ import annotations

import subprocess
from collections.abc import Callable
from datetime import datetime, timedelta

import pytest

from tests.cli.test_messages import array, lines

Tern = Callable[..., subprocess.CompletedProcess[str]]


def test_messages_are_sent_for_later_listed_and_cancelled(on_cluster: Tern) -> None:
    """I2."""
    at = (datetime.now() + timedelta(hours=3)).isoformat(timespec="minutes")  # noqa: DTZ005 - as people type it
    [sent] = lines(on_cluster("send", "later", "presents", "--at", at, "--json"))
    [other] = lines(on_cluster("send", "later", "pay", "--delay", "2h", "--json"))

    [row] = [row for row in array(on_cluster("delay", "list", "--json")) if row["topic"] == "later"]
    hours = array(on_cluster("delay", "stats", "later", "--json"))
    peeked = array(on_cluster("delay", "peek", "later", "--json"))
    people = on_cluster("delay", "peek", "later").stdout

    assert 2 == row["waiting"] == sum(hour["waiting"] for hour in hours)
    assert [("pay", other["recall_handle"]), ("presents", sent["recall_handle"])] == [
        (each["body"], each["handle"]) for each in peeked
    ]
    assert sent["recall_handle"] in people

    asked = on_cluster("delay", "cancel", sent["recall_handle"])
    assert (2, True) == (asked.returncode, f"message {sent['message_id']} to later, on broker-" in asked.stderr)
    done = on_cluster("delay", "cancel", sent["recall_handle"], "--yes")
    assert (0, f"message {sent['message_id']} is cancelled\n") == (done.returncode, done.stdout)
    assert ["pay"] == [each["body"] for each in array(on_cluster("delay", "peek", "later", "--json"))]
    again = on_cluster("delay", "cancel", sent["recall_handle"], "--yes")
    assert (4, True) == (again.returncode, "does not wait on this broker" in again.stderr)


def test_a_short_delay_passes(on_cluster: Tern) -> None:
    """I2: a duration, and a delay level as before."""
    on_cluster("send", "soon", "level", "--delay", "1")
    on_cluster("send", "soon", "duration", "--delay", "200ms")
    got = lines(on_cluster("consume", "soon", "--count", "2", "--from", "first", "--json"))
    assert {"level", "duration"} == {each["body"] for each in got}


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (("--delay", "soon"), "'soon' is not a valid delay; expected 500ms, 90s, 15m, 2h or 3d"),
        (("--at", "Christmas"), "'Christmas' is not a valid time; expected 2026-12-24T18:00"),
        (("--delay", "41d"), "the limit is 3456000 s (timerMaxDelaySec)"),
    ],
)
def test_a_time_that_is_none_is_refused(on_cluster: Tern, arguments: tuple[str, ...], sentence: str) -> None:
    """T1: one sentence."""
    done = on_cluster("send", "later", "x", *arguments)
    assert (True, True) == (done.returncode in (2, 4), sentence in done.stderr)
