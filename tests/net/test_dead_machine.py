"""A machine that goes without a word is noticed by those who wait for it (B2, P4)."""

from __future__ import annotations

from tests.hosts import hosts
from tests.net.dead_machine import HOSTS


def test_who_waits_for_a_dead_machine_gets_an_error_before_its_time_out() -> None:
    """A call that was received, one that was not, a connection that is not used, and threads without a loop."""
    with hosts(*HOSTS) as net:
        done = net.run("client", "tests.net.dead_machine", net.prefix)
    assert done.returncode == 0, done.stdout + done.stderr
