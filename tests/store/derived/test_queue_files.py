"""Files of queues: many queues, few open files, and new ones made beside (C2, «files in number»)."""

from __future__ import annotations

import threading
from pathlib import Path

from ternmq.env import SystemClock
from ternmq.errors import DiskFull
from ternmq.store.derived.queue_files import FilePool
from ternmq.store.disk.file_disk import DescriptorFile, FileDisk
from ternmq.store.store import MessageStore
from tests.store.small import HOST, bodies, draft, quiet_store, small_config


class Watched(FileDisk):
    """Remembers which thread made which file, and can be full."""

    def __init__(self) -> None:
        super().__init__()
        self.made: list[tuple[str, str]] = []
        self.is_full = False

    def open_file(self, path: Path, *, create_size: int | None = None) -> DescriptorFile:
        if create_size is not None and not path.exists():
            if self.is_full:
                raise DiskFull("full")
            self.made.append((threading.current_thread().name, path.parent.name))
        return super().open_file(path, create_size=create_size)


class Later:
    """Chores that are done when the test says so."""

    def __init__(self) -> None:
        self.jobs: list[object] = []

    def __call__(self, job: object) -> None:
        self.jobs.append(job)

    def run(self) -> None:
        while self.jobs:
            job = self.jobs.pop(0)
            assert callable(job)
            job()


def test_a_new_queues_file_is_made_on_another_thread(tmp_path: Path) -> None:
    """C2: while its entries are in memory; after a restart there is one file, as ever."""
    disk = Watched()
    config = small_config(tmp_path, mapped_file_size_consume_queue=6000, message_index_enable=False)
    with MessageStore.open(config, store_host=HOST, clock=SystemClock(), disk=disk) as store:
        for queue_id in range(20):
            store.put(draft(queue_id=queue_id))
        # The chores thread does things in order; when this one is done, all files are made.
        done = threading.Event()
        assert store._upkeep._chores is not None
        store._upkeep._chores(done.set)
        assert done.wait(60)
        assert [("chores_0", str(queue_id)) for queue_id in range(20)] == disk.made
    assert 20 == len(disk.made)
    with quiet_store(config) as store:
        assert [[b"hello"]] * 20 == [bodies(store, "orders", queue_id) for queue_id in range(20)]


def test_a_file_that_was_not_made_in_time_is_made_when_it_is_needed(tmp_path: Path) -> None:
    """C2: and making it later does no harm."""
    disk, later = Watched(), Later()
    config = small_config(tmp_path, mapped_file_size_consume_queue=6000)
    with MessageStore.open(config, store_host=HOST, clock=SystemClock(), disk=disk, threads=False) as store:
        store._queues.files.start_thread(later)
        for number in range(250):
            store.put(draft(body=b"%d" % number))
        assert [("MainThread", "0")] == disk.made
        later.run()
        assert [b"%d" % number for number in range(250)] == bodies(store)


def test_a_removed_topic_does_not_come_back(tmp_path: Path) -> None:
    """D1: the order to make its file is taken back."""
    disk, later = Watched(), Later()
    with MessageStore.open(
        small_config(tmp_path), store_host=HOST, clock=SystemClock(), disk=disk, threads=False
    ) as store:
        store._queues.files.start_thread(later)
        store.put(draft("gone"))
        store.put(draft("kept"))
        store.delete_topics(["gone"])
        later.run()
        assert ["kept"] == [path.name for path in (tmp_path / "consumequeue").iterdir()]


def test_a_full_disk_is_told_when_the_file_is_needed_not_before(tmp_path: Path) -> None:
    """C9."""
    disk, later = Watched(), Later()
    pool = FilePool(disk)
    pool.start_thread(later)
    disk.is_full = True
    pool.make_soon(tmp_path / "t" / "0" / "file", 100)
    later.run()
    disk.is_full = False
    pool.get(tmp_path / "t" / "0" / "file", create_size=100).write(0, b"x")
    assert 100 == (tmp_path / "t" / "0" / "file").stat().st_size
    pool.close()
