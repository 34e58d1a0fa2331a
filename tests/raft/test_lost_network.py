"""The network between members and clients is lost in eight ways, with real hosts, TCP and processes (P3, P4)."""

from __future__ import annotations

from tests.raft.lost_network import LOSSES, run_on_hosts


def test_a_lost_network_loses_no_acknowledged_message() -> None:
    """P4: and the group goes on as long as two members hear each other. More rounds: ``script/soak raft-network``."""
    done = run_on_hosts(len(LOSSES), seed=1)
    assert done.returncode == 0, done.stdout + done.stderr
