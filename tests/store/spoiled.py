"""A store to look into, and ways to spoil it: what the tests of ``store.inspect`` share."""

from __future__ import annotations

from pathlib import Path

from ternmq.store.inspect.sizes import InspectConfig
from ternmq.store.inspect.verify import verify
from tests.manual_clock import ManualClock
from tests.store.small import draft, quiet_store, small_config

#: Of such messages three lie in a segment of 4096 bytes.
BODY = b"x" * 1000
#: Where no entry shows it.
SMALL_INDEX = InspectConfig(max_hash_slot_num=7, max_index_num=10)


def twenty_messages(path: Path) -> Path:
    """A closed store of 20 messages in two queues, with seven segments, four queue files and three index files."""
    clock = ManualClock(1_700_000_000_000)
    with quiet_store(small_config(path), clock=clock) as store:
        for number in range(20):
            store.put(draft("orders", number % 2, BODY + b"%d" % number, KEYS=f"k{number}", TAGS="a"))
            clock.advance(1)
    return path


def edit(path: Path, at: int, data: bytes) -> None:
    """Write into the middle of a file."""
    with path.open("r+b") as file:
        file.seek(at)
        file.write(data)


def kinds(root: Path) -> list[str]:
    """The faults of a store, by kind."""
    return [fault.kind for fault in verify(root).faults]


def segment(root: Path, number: int) -> Path:
    return root / "commitlog" / f"{number * 4096:020d}"


def queue_file(root: Path, queue_id: int, number: int = 0) -> Path:
    return root / "consumequeue" / "orders" / str(queue_id) / f"{number * 100:020d}"
