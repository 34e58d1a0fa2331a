"""The process of a broker, for GET_BROKER_RUNTIME_INFO (T1: `tern top`, `tern doctor`); RocketMQ has no such keys."""

from __future__ import annotations

import os
import platform
from pathlib import Path
from typing import Final

from ternmq import kernels
from ternmq.env import Clock

_STATM: Final = Path("/proc/self/statm")


def process_table(clock: Clock) -> dict[str, str]:
    """Memory, clock and versions."""
    memory = resident_bytes()
    return {
        "timeMs": str(clock.now_ms()),
        "pythonVersion": platform.python_version(),
        "kernels": kernels.describe(),
        # Always as long: in simulations, the length of a reply must not differ from run to run.
        **({"residentBytes": f"{memory:>16}"} if memory is not None else {}),
    }


def resident_bytes() -> int | None:
    """Memory of this process that is not shared with files: mapped logs belong to the page cache. None: not known."""
    try:
        _, resident, shared, *_ = map(int, _STATM.read_text().split())
    except (OSError, ValueError):
        return None
    return (resident - shared) * os.sysconf("SC_PAGE_SIZE")
