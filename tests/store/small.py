"""Stores with small files, drafts, and recorded directories: what the tests of this package share."""

from __future__ import annotations

import hashlib
import json
import shutil
import tarfile
from collections.abc import Callable, Container, Sequence
from pathlib import Path
from typing import Any, Final

from ternmq.env import Clock
from ternmq.store.derived.dispatch import OnArrival
from ternmq.store.derived.fact import Fact
from ternmq.store.derived.follower import OnProgress
from ternmq.store.log.protocol import Log
from ternmq.store.store import Draft, MessageStore, PlacedBatch, StoreConfig
from ternmq.wire.properties import join
from ternmq.wire.record import Record, pack_host, unpack_records
from tests.manual_clock import ManualClock
from tests.recordings import DATA

HOST: Final = pack_host("127.0.0.1", 10911)
BORN: Final = pack_host("10.0.0.7", 40000)

#: As the recorded directories were made (tests/data/README.md).
RECORDED_SIZES: Final[dict[str, Any]] = {
    "mapped_file_size_commit_log": 1 << 20,
    "mapped_file_size_consume_queue": 2000,
    "max_hash_slot_num": 500,
    "max_index_num": 2000,
}
RECORDED: Final = ("rocketmq-4.9.4-clean", "rocketmq-5.2.0-clean", "rocketmq-4.9.4-crashed")


def small_config(root: Path, **changes: Any) -> StoreConfig:
    """Files so small that a few messages fill them."""
    sizes: dict[str, Any] = {
        "mapped_file_size_commit_log": 4096,
        "mapped_file_size_consume_queue": 100,
        "max_hash_slot_num": 7,
        "max_index_num": 10,
    }
    return StoreConfig(store_path_root_dir=root, **(sizes | changes))


def files(root: Path) -> dict[str, bytes]:
    """Every file below a directory, and its bytes."""
    return {str(path.relative_to(root)): path.read_bytes() for path in sorted(root.rglob("*")) if path.is_file()}


def log_queues_index(root: Path) -> tuple[dict[str, bytes], dict[str, bytes], list[bytes]]:
    """The three kinds of files. Those of the index are named by the time of day when they were made."""
    return files(root / "commitlog"), files(root / "consumequeue"), [*files(root / "index").values()]


def quiet_store(
    config: StoreConfig,
    *,
    clock: Clock | None = None,
    log: Log | None = None,
    on_arrival: OnArrival | None = None,
    listened: Container[str] | None = None,
    bits: Callable[[Fact], bytes] | None = None,
    on_progress: OnProgress | None = None,
) -> MessageStore:
    """An open store without threads: everything happens when it is called."""
    return MessageStore.open(
        config,
        store_host=HOST,
        clock=clock or ManualClock(),
        log=log,
        on_arrival=on_arrival,
        listened=listened,
        bits=bits,
        on_progress=on_progress,
        threads=False,
    )


def draft(topic: str = "orders", queue_id: int = 0, body: bytes = b"hello", **properties: str) -> Draft:
    return Draft(topic, queue_id, body, join(properties), 1_699_999_999_000, BORN)


def read_all(store: MessageStore, topic: str, queue_id: int) -> list[Record]:
    """All messages of a queue, from its min offset on, as a consumer would read them."""
    records: list[Record] = []
    queue_offset = store.min_offset(topic, queue_id)
    while queue_offset < store.max_offset(topic, queue_id):
        result = store.get(topic, queue_id, queue_offset, count_max=32)
        assert result.next_offset > queue_offset
        for buffer in result.buffers:
            records += unpack_records(buffer)
        queue_offset = result.next_offset
    return records


def bodies(store: MessageStore, topic: str = "orders", queue_id: int = 0) -> list[bytes]:
    return [bytes(record.body) for record in read_all(store, topic, queue_id)]


def crash(store: MessageStore, into: Path) -> StoreConfig:
    """The directory as it would be found if the process died now; returns the settings to open it with."""
    root = store.config.store_path_root_dir
    shutil.copytree(root, into)
    fields = {name: getattr(store.config, name) for name in RECORDED_SIZES}
    return StoreConfig(store_path_root_dir=into, **fields)


# --- Recorded directories -------------------------------------------------------------------------------------


def unpack_stores(into: Path) -> None:
    """The recorded stores; the timer's files, which are large and not ours, stay packed."""
    for name in RECORDED:
        with tarfile.open(DATA / "stores" / f"{name}.tar.gz") as archive:
            for member in archive:
                if "/timer" not in member.name:
                    archive.extract(member, into, filter="data")


class RecordedStore:
    """A directory that RocketMQ wrote, copied for one test, and what is known of it."""

    def __init__(self, unpacked: Path, name: str, into: Path) -> None:
        self.root = into / name
        shutil.copytree(unpacked / name, self.root)
        self.config = StoreConfig(store_path_root_dir=self.root, **RECORDED_SIZES)
        #: Each record of the log in order, decoded by another program.
        self.lines: list[dict[str, Any]] = [
            json.loads(line) for line in (unpacked / f"{name}.records.jsonl").read_text().splitlines()
        ]
        acked = unpacked / f"{name}.acked.txt"
        #: Number, status, unique id, offset id, queue id, queue offset of each acknowledged send.
        self.acknowledged = [line.split() for line in acked.read_text().splitlines()] if acked.exists() else []

    @property
    def queues(self) -> dict[tuple[str, int], list[dict[str, Any]]]:
        """The lines by queue. A prepared half or a rollback has no queue."""
        queues: dict[tuple[str, int], list[dict[str, Any]]] = {}
        for line in self.lines:
            if not line["sysflag"] & 4:
                queues.setdefault((line["topic"], line["queue_id"]), []).append(line)
        return queues


def sha1(data: bytes | memoryview) -> str:
    return hashlib.sha1(data).hexdigest()


def put_all(store: MessageStore, drafts: Sequence[Draft]) -> PlacedBatch:
    """Put drafts of one queue and one sender as a batch."""
    first = drafts[0]
    return store.put_batch(
        first.topic,
        first.queue_id,
        [(each.flag, bytes(each.body), each.properties.encode()) for each in drafts],
        born_time_ms=first.born_time_ms,
        born_host=first.born_host,
        sysflag=first.sysflag,
    )
