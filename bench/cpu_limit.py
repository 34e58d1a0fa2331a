"""Gives a process a part of one CPU, as a container's limit does: ``python -m bench.cpu_limit PID SHARE``.

In each period the process may use its share of CPU time, all threads together; then it is stopped (SIGSTOP) until the
period ends, as the kernel does with ``cpu.max`` of a control group, which needs rights that not every machine gives.
What it used beyond is taken from the next periods, so the share is exact on average. A program of its own: within a
busy client the times would depend on what the client does.

It ends when the process does, or when its own input is closed, and lets the process run then.
"""

from __future__ import annotations

import os
import select
import signal
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from subprocess import PIPE, Popen
from typing import Final

PERIOD_S: Final = 0.02
#: How often the process is looked at while it runs.
LOOK_S: Final = 0.0005


def cpu_clock(pid: int) -> int:
    """The clock of a process's CPU time (clock_getcpuclockid(3))."""
    return ~pid << 3 | 2


def limit(pid: int, share: float) -> None:
    """Until standard input ends."""
    clock = cpu_clock(pid)
    granted = time.clock_gettime(clock)
    try:
        while not select.select([sys.stdin], [], [], 0)[0]:
            began, used = time.monotonic(), time.clock_gettime(clock)
            # What was not used is not saved.
            granted = max(granted, used - PERIOD_S) if granted < used else used
            granted += share * PERIOD_S
            if used < granted:
                os.kill(pid, signal.SIGCONT)
                while time.monotonic() < began + PERIOD_S and time.clock_gettime(clock) < granted:
                    time.sleep(LOOK_S)
            if time.clock_gettime(clock) >= granted:
                os.kill(pid, signal.SIGSTOP)
            time.sleep(max(0.0, began + PERIOD_S - time.monotonic()))
    finally:
        with suppress(ProcessLookupError):
            os.kill(pid, signal.SIGCONT)


@contextmanager
def limited(pid: int, share: float) -> Iterator[None]:
    """A process has a share of one CPU within this block."""
    with Popen([sys.executable, "-m", "bench.cpu_limit", str(pid), str(share)], stdin=PIPE) as limiter:
        try:
            yield
        finally:
            assert limiter.stdin is not None, "asked for"
            limiter.stdin.close()


if __name__ == "__main__":
    with suppress(ProcessLookupError, OSError):
        limit(int(sys.argv[1]), float(sys.argv[2]))
