"""Many files: ten thousand queues compared with one, and thousands of segments. Run: python -m bench.queues [messages]

The same messages are put into one queue, and round robin into 100 topics of 100 queues. The CPU time of the store's
thread is measured, including entries, and writing them out 200 at a time. (This needs enough messages: more than 200
per queue.) First the queues are new and their files are created, then they exist.
Goal: ten thousand at 0.7 of the rate of one. Then a log of 3,000 segments is opened and read in some places.
"""

from __future__ import annotations

import sys
import tempfile
import time
from pathlib import Path

from ternmq.env import SystemClock
from ternmq.store.store import Draft, MessageStore, StoreConfig

sys.path.insert(0, str(Path(__file__).parent))
from bench.store import HOST, PROPERTIES

QUEUES = 10_000
PER_TOPIC = 100
SEGMENTS = 3_000
BATCH = 256


def status(name: str) -> int:
    """A line of this process' status, in MB."""
    lines = Path("/proc/self/status").read_text().splitlines()
    return int(next(line for line in lines if line.startswith(name)).split()[1]) >> 10


def descriptors() -> int:
    return len(list(Path("/proc/self/fd").iterdir()))


def mappings(root: Path) -> int:
    return Path("/proc/self/maps").read_text().count(str(root / "commitlog"))


def puts_per_second(store: MessageStore, queues: int, *, first: int, count: int) -> float:
    """Puts a second of CPU time of this thread."""
    put, cpu_s = store.put, 0.0
    for begin in range(first, first + count, BATCH):
        # Created just before, as in a broker, so that they are in the cache.
        batch = [
            Draft(
                f"topic-{number % queues // PER_TOPIC:03d}",
                number % queues % PER_TOPIC,
                b"x" * 128,
                PROPERTIES.format(number & 0xFFFF, "order", number),
                1,
                HOST,
            )
            for number in range(begin, begin + BATCH)
        ]
        began = time.thread_time()
        for draft in batch:
            put(draft)
        cpu_s += time.thread_time() - began
    return count / cpu_s


def put_into_queues(root: Path, count: int) -> None:
    config = StoreConfig(store_path_root_dir=root / "one")
    with MessageStore.open(config, store_host=HOST, clock=SystemClock()) as store:
        one = puts_per_second(store, 1, first=0, count=count // 4)
    print(f"     1 queue         {1e6 / one:5.2f} µs CPU a put")
    config = StoreConfig(store_path_root_dir=root / "many")
    with MessageStore.open(config, store_host=HOST, clock=SystemClock()) as store:
        before_mb, before = status("RssAnon"), descriptors()
        for phase, title in enumerate(("new", "old")):
            many = puts_per_second(store, QUEUES, first=phase * count, count=count)
            print(f"{QUEUES:6,d} {title} queues    {1e6 / many:5.2f} µs CPU a put, {many / one:.2f} of the rate of one")
        print(
            f"                     {status('RssAnon') - before_mb} MB of memory, {descriptors() - before} descriptors"
        )
    began = time.perf_counter()
    with MessageStore.open(config, store_host=HOST, clock=SystemClock()):
        print(f"                     opened in {time.perf_counter() - began:.2f} s")


def open_many_segments(root: Path) -> None:
    config = StoreConfig(store_path_root_dir=root, mapped_file_size_commit_log=64 * 1024, message_index_enable=False)
    with MessageStore.open(config, store_host=HOST, clock=SystemClock(), threads=False) as store:
        while store.written < SEGMENTS * 64 * 1024:
            store.put(Draft("many", 0, b"x" * 30_000, "", 1, HOST))
            store.flush_now()
    before = descriptors()
    began = time.perf_counter()
    with MessageStore.open(config, store_host=HOST, clock=SystemClock(), threads=False) as store:
        opened_s = time.perf_counter() - began
        at_start = mappings(root)
        end = store.max_offset("many", 0)
        began = time.perf_counter()
        for queue_offset in range(0, end, 7):
            store.get("many", 0, queue_offset, count_max=1)
        per_get_us = (time.perf_counter() - began) / (end / 7) * 1e6
        print(
            f"{SEGMENTS:6,d} segments opened in {opened_s:.2f} s with {at_start} mapped; after reads all over the log "
            f"({per_get_us:.0f} µs each) {mappings(root)} are, with {descriptors() - before} descriptors"
        )


def main() -> None:
    count = int(sys.argv[1]) if len(sys.argv) > 1 else 2_200_000
    with tempfile.TemporaryDirectory() as directory:
        put_into_queues(Path(directory), count)
        open_many_segments(Path(directory) / "segments")


if __name__ == "__main__":
    main()
