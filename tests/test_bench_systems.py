"""The brokers that ``script/bench`` compares are scheduled in the same way."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest

from bench import systems
from bench.systems import is_scheduled_here, start_ternmq

GROUPS = Path("/proc/sys/kernel/sched_autogroup_enabled")


def has_groups() -> bool:
    return GROUPS.exists() and GROUPS.read_text().strip() == "1"


@pytest.mark.skipif(not has_groups(), reason="this kernel does not schedule by session")
def test_a_process_of_another_session_is_scheduled_apart() -> None:
    """R4: SCHED_IDLE of the storm's clients means nothing to it."""
    for is_apart in (False, True):
        process = subprocess.Popen(["cat"], stdin=subprocess.PIPE, start_new_session=is_apart)
        try:
            assert is_scheduled_here(process.pid) is not is_apart
        finally:
            process.kill()
            process.wait()
            assert process.stdin is not None
            process.stdin.close()
    assert is_scheduled_here(os.getpid())


def test_brokers_that_are_compared_are_of_our_session(tmp_path: Path) -> None:
    """R4: as RocketMQ's are. Those of ``tern up`` have sessions of their own, which changes how much a read brings."""
    with start_ternmq(tmp_path, brokers=2) as system:
        assert len(system.more_pids) == 1
        for pid in (system.broker_pid, *system.more_pids):
            assert os.getsid(pid) == os.getsid(0)
            assert systems.cpu_s(pid) > 0
