"""A process that puts messages until it is killed, and says so after each: ``python -m tests.store.killed ROOT SEED``.

A line of standard output is one acknowledged message: queue id, queue offset, log offset, number.
"""

from __future__ import annotations

import os
import random
import sys
from pathlib import Path

from ternmq.env import SystemClock
from ternmq.store.store import MessageStore, StoreConfig
from tests.store.small import HOST, draft, put_all


def config_for(root: Path) -> StoreConfig:
    """Segments that fill several times a second, and every timer running."""
    return StoreConfig(
        store_path_root_dir=root,
        mapped_file_size_commit_log=256 * 1024,
        mapped_file_size_consume_queue=2000,
        max_hash_slot_num=100,
        max_index_num=1000,
        flush_interval_commit_log=5,
        flush_interval_consume_queue=10,
        flush_consume_queue_thorough_interval=50,
    )


def body_of(number: int) -> bytes:
    return b"%d" % number * (number % 200)


def main(root: Path, seed: int) -> None:
    choice = random.Random(seed)
    store = MessageStore.open(config_for(root), store_host=HOST, clock=SystemClock())
    number = seed * 1_000_000
    while True:
        queue_id = choice.randrange(4)
        numbers = range(number, number + choice.choice((1, 1, 1, 5)))
        number = numbers.stop
        placed = put_all(store, [draft("orders", queue_id, body_of(one), KEYS=f"k{one}") for one in numbers])
        for index, (one, log_offset) in enumerate(zip(numbers, placed.log_offsets, strict=True)):
            os.write(1, b"%d %d %d %d\n" % (queue_id, placed.queue_offset + index, log_offset, one))


if __name__ == "__main__":
    main(Path(sys.argv[1]), int(sys.argv[2]))
