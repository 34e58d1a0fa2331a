"""The store against a model of lists: whatever is done to it, it serves what was put (C1–C8)."""

from __future__ import annotations

import os
import shutil
import tempfile
from pathlib import Path

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from ternmq.store.read.reader import LogReader
from ternmq.store.store import GetStatus, MessageStore
from ternmq.wire.ids import java_hash
from ternmq.wire.properties import find
from ternmq.wire.record import unpack_record, unpack_records
from tests.manual_clock import ManualClock
from tests.store.small import crash, draft, log_queues_index, put_all, quiet_store, read_all, small_config

TOPICS = st.sampled_from(["orders", "%RETRY%g"])
QUEUES = st.integers(0, 1)
BODIES = st.integers(0, 1500).map(lambda size: b"x" * size)
TAGS = st.sampled_from(["", "red", "blue"])
KEYS = st.sampled_from(["", "k1", "k2 order-0000123", "k1 k2"])


class StoreAgainstLists(RuleBasedStateMachine):
    """A store without threads, small files, and what it should hold: a list of bodies, tags and keys per queue."""

    def __init__(self) -> None:
        super().__init__()
        # In memory where there is such a file system: thousands of fsyncs prove nothing here.
        memory = Path("/dev/shm")
        self.base = Path(tempfile.mkdtemp(prefix="ternmq-model-", dir=memory if memory.is_dir() else None))
        self.clock = ManualClock()
        self.store: MessageStore = quiet_store(small_config(self.base / "0"), clock=self.clock)
        self.copies = 0
        #: Body, tags, keys and log offset of each message.
        self.queues: dict[tuple[str, int], list[tuple[bytes, str, str, int]]] = {}
        self.any_topic_deleted = False
        self.any_segment_deleted = False

    def teardown(self) -> None:
        self.store.close()
        # Where old messages are gone, a queue's numbers may be known from its files only.
        if self.store.written and not self.any_segment_deleted:
            self.a_fresh_fold_gives_the_same_files()
        shutil.rmtree(self.base)

    def a_fresh_fold_gives_the_same_files(self) -> None:
        root = self.store.config.store_path_root_dir
        fresh = self.base / "fresh"
        shutil.copytree(root / "commitlog", fresh / "commitlog")
        # A topic without queues leaves no note.
        if (notes := root / "deletedTopics.json").exists():
            shutil.copy(notes, fresh)
        with quiet_store(small_config(fresh), clock=self.clock):
            pass
        assert log_queues_index(root) == log_queues_index(fresh)

    # --- What can be done ---------------------------------------------------------------------------------------

    @rule(topic=TOPICS, queue_id=QUEUES, body=BODIES, tags=TAGS, keys=KEYS)
    def put(self, topic: str, queue_id: int, body: bytes, tags: str, keys: str) -> None:
        queue = self.queues.setdefault((topic, queue_id), [])
        placed = self.store.put(draft(topic, queue_id, body, TAGS=tags, KEYS=keys))
        assert len(queue) == placed.queue_offset
        queue.append((body, tags, keys, placed.log_offset))

    @rule(topic=TOPICS, queue_id=QUEUES, sizes=st.lists(st.integers(0, 900), min_size=1, max_size=3))
    def put_batch(self, topic: str, queue_id: int, sizes: list[int]) -> None:
        queue = self.queues.setdefault((topic, queue_id), [])
        placed = put_all(self.store, [draft(topic, queue_id, b"b" * size) for size in sizes])
        assert (len(queue), len(sizes)) == (placed.queue_offset, len(placed.log_offsets))
        assert 1 == len({log_offset // 4096 for log_offset in placed.log_offsets})
        queue += [(b"b" * size, "", "", at) for size, at in zip(sizes, placed.log_offsets, strict=True)]

    @rule(topic=TOPICS, queue_id=QUEUES)
    def put_a_half(self, topic: str, queue_id: int) -> None:
        half = draft(topic, queue_id, b"half")
        half.sysflag = 4
        assert 0 == self.store.put(half).queue_offset

    @rule(seconds=st.floats(0.001, 40))
    def let_time_pass(self, seconds: float) -> None:
        self.clock.advance(seconds)
        self.store.tick()

    @rule()
    def flush(self) -> None:
        self.store.flush_now()
        assert self.store.written == self.store.flushed.value

    @rule()
    def close_and_open(self) -> None:
        self.store.close()
        self._open(self.store.config.store_path_root_dir)

    @rule(lost=st.sets(st.sampled_from(["consumequeue", "index", "checkpoint"])))
    def die_and_open(self, lost: set[str]) -> None:
        """The process is killed; some derived files may be lost, too."""
        self.copies += 1
        root = self.base / str(self.copies)
        crash(self.store, root)
        self.store.close()
        for name in lost:
            path = root / name
            shutil.rmtree(path) if path.is_dir() else path.unlink(missing_ok=True)
        self._open(root)

        if "consumequeue" in lost:
            # A queue without any record left begins anew, as it is not known how many it had.
            self.queues = {
                key: queue for key, queue in self.queues.items() if queue and queue[-1][3] >= self.store.min_log_offset
            }

    @rule(count=st.integers(1, 3))
    def clean(self, count: int) -> None:
        """The oldest segments go."""
        for path in self.store._log.oldest(count):
            os.utime(path, (0, 0))
            self.any_segment_deleted = True
        self.clock.advance(61)  # queues are written out before what they point to is deleted
        self.store.retention.ask()
        self.store.tick()
        assert [] == [path for path in self.store._log.oldest(99) if path.stat().st_mtime == 0]

    def _open(self, root: Path) -> None:
        self.store = quiet_store(small_config(root), clock=self.clock)

    @precondition(lambda self: self.queues)
    @rule(topic=TOPICS)
    def delete_topic(self, topic: str) -> None:
        self.store.delete_topics([topic])
        self.queues = {key: queue for key, queue in self.queues.items() if key[0] != topic}
        self.any_topic_deleted = True

    # --- What must hold -----------------------------------------------------------------------------------------

    @rule(topic=TOPICS, queue_id=QUEUES, offset=st.integers(-1, 40), count=st.integers(1, 40), tags=TAGS)
    def get(self, topic: str, queue_id: int, offset: int, count: int, tags: str) -> None:
        queue = self.queues.get((topic, queue_id), [])
        result = self.store.get(
            topic, queue_id, offset, count_max=count, matches=(lambda code: code == java_hash(tags)) if tags else None
        )
        found = [record for buffer in result.buffers for record in unpack_records(buffer)]
        assert result.count == len(found)
        if result.status is GetStatus.FOUND:
            expected = [
                (number, message[0])
                for number, message in enumerate(queue)
                if offset <= number < result.next_offset and tags in ("", message[1])
            ]
            assert expected == [(record.queue_offset, bytes(record.body)) for record in found]
        elif 0 <= offset < self.first_of(queue):
            assert (GetStatus.OFFSET_TOO_SMALL, self.first_of(queue)) == (result.status, result.next_offset)
        elif 0 <= offset < len(queue):
            assert GetStatus.NO_MATCHED_MESSAGE is result.status
            assert tags not in [message[1] for message in queue[offset : result.next_offset]]

    @rule(topic=TOPICS, key=st.sampled_from(["k1", "k2", "order-0000123", "k"]))
    def query(self, topic: str, key: str) -> None:
        if self.any_topic_deleted:
            return
        found = self.store.query(topic, key, count_max=64, begin_ms=0, end_ms=1 << 62).buffers
        expected = sum(
            key in message[2].split() and message[3] >= self.store.min_log_offset
            for (name, _), queue in self.queues.items()
            if name == topic
            for message in queue
        )
        assert min(expected, 64) == len(found)
        for record in map(unpack_record, found):
            assert topic == record.topic
            assert key in (find(record.properties, "KEYS") or "").split()

    @invariant()
    def every_queue_is_the_list(self) -> None:
        for (topic, queue_id), queue in self.queues.items():
            first = self.first_of(queue)
            assert (first, len(queue)) == (
                self.store.min_offset(topic, queue_id),
                self.store.max_offset(topic, queue_id),
            )
            assert [message[0] for message in queue[first:]] == [
                bytes(record.body) for record in read_all(self.store, topic, queue_id)
            ]

    def first_of(self, queue: list[tuple[bytes, str, str, int]]) -> int:
        """Number of the first message that the log still has."""
        return sum(message[3] < self.store.min_log_offset for message in queue)

    @invariant()
    def the_log_can_be_read_by_others(self) -> None:
        if self.store.written:
            reader = LogReader(self.store.config.store_path_root_dir)
            last = 0
            for record in reader:
                last = record.log_offset + record.size
            assert ("", True) == (reader.trouble, last <= self.store.written)


StoreAgainstLists.TestCase.settings = settings(max_examples=60, stateful_step_count=30)
TestStoreAgainstLists = StoreAgainstLists.TestCase
