"""Changes of a lake whose data files are lines of text, which is all the same to its books.

As a program: for each lake in a directory, a process that makes a change and is killed at its n-th touch of a file,
where n is the lake's number; Python tells of each touch before it happens.
"""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Iterable
from pathlib import Path

from ternmq.message import MessageQueue
from ternmq.spark.lake.covered import OffsetSpan
from ternmq.spark.lake.lake import Lake

QUEUE = MessageQueue("orders", "broker-a", 0)
HOURS = ["topic=orders/date=2026-11-16/hour=03", "topic=orders/date=2026-11-16/hour=04"]

TOUCHES = frozenset(
    ("open", "os.rename", "os.mkdir", "os.link", "os.rmdir", "os.remove", "os.scandir", "ctypes.dlsym", "fcntl.flock")
)


def write(path: Path, numbers: Iterable[int]) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("".join(f"{number}\n" for number in numbers))


def add(lake: Lake, span: OffsetSpan, *, apart_from: int | None = None) -> bool:
    """Offsets as rows, half of them in the next hour."""
    middle = (span[0] + span[1]) // 2
    with lake.stage() as stage:
        write(stage.path / HOURS[0] / "part-0.parquet", range(span[0], middle))
        write(stage.path / HOURS[1] / "part-0.parquet", range(middle, span[1]))
        return lake.add(stage, {QUEUE: span}, rows=span[1] - span[0], apart_from=apart_from)


def merge(lake: Lake, *, meanwhile: OffsetSpan | None = None) -> bool:
    """Make one file of those of the first hour."""
    files = lake.hours()[HOURS[0]]
    with lake.stage() as stage:
        new = stage.path / "0" / "0.parquet"
        write(new, (number for path in files for number in map(int, path.read_text().split())))
        if meanwhile is not None:
            add(lake, meanwhile)
        return lake.replace(HOURS[0], [path.name for path in files], [new])


def numbers(path: Path) -> list[int]:
    """What a reader sees who knows nothing of lakes, and passes over names with an underscore."""
    files = [file for file in path.rglob("*.parquet") if "_ternmq" not in file.parts]
    return sorted(int(line) for file in files for line in file.read_text().split())


def main(directory: str, what: str) -> None:
    for point, path in enumerate(sorted(Path(directory).iterdir())):
        if not os.fork():
            _killed(Lake.at(path), what, point)
            os._exit(0)
        print(os.waitstatus_to_exitcode(os.wait()[1]), flush=True)  # noqa: T201


def _killed(lake: Lake, what: str, touches: int) -> None:
    def count(event: str, _: object) -> None:
        nonlocal touches
        if event in TOUCHES:
            touches -= 1
        if touches < 0:
            touches = 1  # the next line is an event itself
            os.kill(os.getpid(), signal.SIGKILL)

    sys.addaudithook(count)
    if what == "add":
        add(lake, (20, 40))
    else:
        merge(lake)


if __name__ == "__main__":
    main(*sys.argv[1:])
