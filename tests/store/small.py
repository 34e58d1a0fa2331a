"""Stores with small files, drafts, and recorded directories: what the tests of this package share."""

from __future__ import annotations

import functools
import hashlib
import json
import shutil
import tarfile
from pathlib import Path
from typing import Any, Final

from ternmq.env import Clock
from ternmq.store.store import Draft, MessageStore, StoreConfig
from ternmq.wire.properties import join
from ternmq.wire.record import Record, pack_host, unpack_records
from tests.manual_clock import ManualClock
from tests.recordings import DATA

HOST: Final = pack_host("127.0.0.1", 10911)
BORN: Final = pack_host("10.0.0.7", 40000)

#: As the recorded directories were made (tests/data/README.md).
RECORDED_SIZES: Final[dict[str, int]] = {
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


def quiet_store(config: StoreConfig, *, clock: Clock | None = None) -> MessageStore:
    """A store without threads: everything happens when it is called."""
    return MessageStore(config, store_host=HOST, clock=clock or ManualClock(), threads=False)


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


def unpack_store(name: str, into: Path) -> Path:
    """The recorded store of this name; its timer files, which are large and not ours, stay packed."""
    with tarfile.open(DATA / "stores" / f"{name}.tar.gz") as archive:
        members = [member for member in archive if f"./{name}/" in member.name and "/timer" not in member.name]
        archive.extractall(into, members=members, filter="data")
    return into / name


@functools.cache
def recorded_text(name: str, suffix: str) -> list[str]:
    with tarfile.open(DATA / "stores" / f"{name}.tar.gz") as archive:
        file = archive.extractfile(f"./{name}.{suffix}")
        assert file is not None
        return file.read().decode().splitlines()


@functools.cache
def recorded_records(name: str) -> list[dict[str, Any]]:
    """Each record of a recorded log in order, decoded by someone else."""
    return [json.loads(line) for line in recorded_text(name, "records.jsonl")]


def sha1(data: bytes | memoryview) -> str:
    return hashlib.sha1(data).hexdigest()
