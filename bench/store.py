"""The cost of a put and a get of the store: CPU time of this thread per call. Run: python -m bench.store [messages]

On a Raft log, a message of a batch is confirmed, too, and the entries are what a leader would send.

The message is that of the throughput goal: a body of 128 bytes, some 150 bytes of properties with a unique key and a
tag, and the same with a key of the application. Sixteen queues, so that consecutive records belong to different
queues.
"""

from __future__ import annotations

import sys
import tempfile
import time
from collections.abc import Callable, Iterable
from functools import partial
from pathlib import Path
from zlib import crc32

from ternmq.env import SystemClock
from ternmq.raft.log import RaftLog, RaftPaths
from ternmq.store.disk.file_disk import FileDisk
from ternmq.store.store import Draft, MessageStore, StoreConfig
from ternmq.wire.batch import pack_messages, unpack_messages
from ternmq.wire.record import pack_host

QUEUES = 16
HOST = pack_host("127.0.0.1", 10911)
PROPERTIES = (
    "UNIQ_KEY\x017F00000100002A9F0000018E5B2C{:04X}\x02{}\x01order-{}\x02TAGS\x01TagA\x02WAIT\x01true\x02"
    "MSG_REGION\x01DefaultRegion\x02TRACE_ON\x01true\x02CLUSTER\x01DefaultCluster\x02"
)


def measure(name: str, per_round: int, rounds: Iterable[Callable[[], None]]) -> None:
    """Run the rounds and print the best and the median of them: other programs use this machine, too."""
    costs = []
    for work in rounds:
        began = time.thread_time()
        work()
        costs.append((time.thread_time() - began) / per_round * 1e6)
    costs.sort()
    print(f"{name:28s} best {costs[0]:6.2f}  median {costs[len(costs) // 2]:6.2f}  µs CPU")


def drafts(first: int, count: int, name: str) -> list[Draft]:
    return [
        Draft("BenchTopic", number % QUEUES, b"x" * 128, PROPERTIES.format(number & 0xFFFF, name, number), 1, HOST)
        for number in range(first, first + count)
    ]


def record_of(store: MessageStore) -> tuple[bytes, bytes]:
    """A message of the bench as the log has it, and its body."""
    [draft] = drafts(0, 1, "order")
    record = store.record_at(store.put(draft).log_offset)
    assert record is not None
    return bytes(record), bytes(draft.body)


def copy_all(parts: tuple[bytes, bytes]) -> None:
    """The minimum for any append of a record with a checksum: copying the bytes, and the CRC of the body."""
    record, body = parts
    page, size = memoryview(bytearray(256 * len(record))), len(record)
    for at in range(0, 256 * size, size):
        crc32(body)
        page[at : at + size] = record


def main() -> None:
    count = int(sys.argv[1]) if len(sys.argv) > 1 else 200_000
    per_round = 256  # drafts are made just before, as a broker does, so that they are in the cache
    with tempfile.TemporaryDirectory() as directory:
        config = StoreConfig(store_path_root_dir=Path(directory))
        with MessageStore.open(config, store_host=HOST, clock=SystemClock()) as store:

            def put_all(batch: list[Draft]) -> None:
                put = store.put
                for draft in batch:
                    put(draft)

            def get_all(get_from: int) -> None:
                get = store.get
                for _ in range(100):
                    get("BenchTopic", 3, get_from, count_max=32)

            measure("memcpy and CRC, no store", per_round, [partial(copy_all, record_of(store))] * (count // per_round))
            for title, name in (("put", "order"), ("put with a key", "KEYS")):
                rounds = (partial(put_all, drafts(first, per_round, name)) for first in range(0, count, per_round))
                measure(title, per_round, rounds)
            rounds = (partial(_put_sent, store, batch(first)) for first in range(0, count // 32, 32))
            measure("message of a batch of 32", 32, rounds)
            measure("get of 32 (queue file)", 100, [partial(get_all, 0)] * 50)
            newest = store.max_offset("BenchTopic", 3) - 32
            measure("get of 32 (newest)", 100, [partial(get_all, newest)] * 50)
            for number in range(64):
                store.put(Draft("OneQueue", 0, b"x" * 128, PROPERTIES.format(number, "KEYS", number), 1, HOST))
            measure("get of 32 (side by side)", 100, [lambda: _get_one_queue(store)] * 50)
        config = StoreConfig(store_path_root_dir=Path(directory) / "raft")
        log = raft_log(config)
        with MessageStore.open(config, store_host=HOST, clock=SystemClock(), log=log) as store:
            store.put(drafts(0, 1, "KEYS")[0])
            rounds = (partial(_put_confirmed, store, batch(first)) for first in range(0, count // 32, 32))
            measure("the same, on a Raft log", 32, rounds)


def batch(first: int) -> bytes:
    """A batch as it is sent."""
    return pack_messages([(0, draft.body, draft.properties) for draft in drafts(first, 32, "KEYS")])


def _put_sent(store: MessageStore, data: bytes) -> None:
    """What the broker does with a batch, without its checks."""
    if store.put_sent_batch("BenchTopic", 0, data, born_time_ms=1, born_host=HOST) is None:
        store.put_batch("BenchTopic", 0, unpack_messages(data), born_time_ms=1, born_host=HOST)


def raft_log(config: StoreConfig) -> RaftLog:
    """The log of a leader."""
    log = RaftLog(FileDisk(), RaftPaths.of(config, "n0"), segment_bytes=config.mapped_file_size_commit_log)
    log.term = 1
    return log


def _put_confirmed(store: MessageStore, data: bytes) -> None:
    _put_sent(store, data)
    store.confirm(store.written)


def _get_one_queue(store: MessageStore) -> None:
    for _ in range(100):
        store.get("OneQueue", 0, 0, count_max=32)


if __name__ == "__main__":
    main()
