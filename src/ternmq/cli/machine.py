"""Facts of this machine, for ``tern doctor``: what a system does not tell is left out (macOS, Windows, containers)."""

from __future__ import annotations

import os
import shutil
from contextlib import suppress
from pathlib import Path
from typing import Final

from ternmq.cli.findings import DiskFacts
from ternmq.errors import ConfigError, NetworkError
from ternmq.net.endpoint import bind

_MOUNTS: Final = Path("/proc/self/mountinfo")
_BLOCKS: Final = Path("/sys/dev/block")
_MAPPINGS: Final = Path("/proc/sys/vm/max_map_count")


def disk_facts(directory: Path) -> DiskFacts:
    """Of the disk on which a directory is, or will be."""
    place = directory.absolute()
    while not place.exists():
        place = place.parent
    usage = shutil.disk_usage(place)
    scheduler, is_rotational = _queue_of(place.stat().st_dev)
    # Of the part that programs may use, as brokers count: what is kept for root is neither free nor used.
    total = usage.used + usage.free
    return DiskFacts(str(directory), usage.free, total, _file_system(place), scheduler, is_rotational)


def _file_system(place: Path) -> str:
    """The type of the mount with the longest path above ``place``."""
    best, kind = -1, ""
    for line in _read(_MOUNTS).splitlines():
        left, _, right = line.partition(" - ")
        fields = left.split()
        if len(fields) <= 4 or not right or len(fields[4]) < best:
            continue
        if place.resolve().is_relative_to(fields[4].replace("\\040", " ")):
            best, kind = len(fields[4]), right.split()[0]
    return kind


def _queue_of(device: int) -> tuple[str, bool | None]:
    """The scheduler of a block device, and whether it turns; partitions have the queue of their disk."""
    block = _BLOCKS / f"{os.major(device)}:{os.minor(device)}"
    for queue in (block / "queue", block.resolve().parent / "queue"):
        text = _read(queue / "scheduler")
        if text:
            chosen = text.partition("[")[2].partition("]")[0] or text.strip()
            return chosen, _read(queue / "rotational").strip() == "1"
    return "", None


def limits() -> tuple[int | None, int | None, int | None]:
    """Open files, bytes of locked memory, mappings; negative: no limit."""
    try:
        import resource
    except ImportError:
        return None, None, None
    files = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
    locked = resource.getrlimit(resource.RLIMIT_MEMLOCK)[0]
    mappings = _read(_MAPPINGS).strip()
    return files, locked, int(mappings) if mappings.isdecimal() else None


async def trouble_of(host: str, port: int) -> str:
    """Why a server cannot listen on a port; empty if it can."""
    try:
        bind(host, port).close()
    except (NetworkError, ConfigError) as error:
        return str(error)
    return ""


def _read(path: Path) -> str:
    with suppress(OSError):
        return path.read_text()
    return ""
