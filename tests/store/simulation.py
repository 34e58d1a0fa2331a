"""One seed, one life of a store on a simulated disk: random calls, faults between any two steps, and what must hold.

A program puts, flushes, ticks, reads, closes, deletes topics, and lets the kernel write back what it wants. A *fuse* of
some steps of the disk burns down meanwhile, also inside recovery: then the power is cut, the process dies, or the disk
fills up or fails for a while. After each opening the store is compared with a list of what was put (``Model``):

- nothing is lost that was flushed, and only from the end (C6, C8);
- every record that is served is one that was put, at the place that its sender was told (C1, C2);
- queues and index equal those of a fresh store that has nothing but the log (C5).

The same seed gives the same ``trace``, whatever the process.
"""

from __future__ import annotations

import contextlib
import hashlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from random import Random
from typing import Any, Final

from ternmq.errors import DiskFull, StoreError
from ternmq.store.config import FlushDiskType, StoreConfig
from ternmq.store.draft import Draft
from ternmq.store.query import GetStatus
from ternmq.store.store import MessageStore
from ternmq.testing.disk import PowerCut, SimulatedDisk
from ternmq.wire.properties import find, join
from ternmq.wire.record import Sysflag, pack_host, unpack_records

ROOT: Final = Path("/store")
HOST: Final = pack_host("127.0.0.1", 10911)
BORN: Final = pack_host("10.0.0.7", 40000)
BORN_MS: Final = 1_700_000_000_000
TOPICS: Final = ("orders", "%RETRY%g", "long-" + "t" * 130)
KEYS: Final = ("k0", "k1", "k2", "order-0000123")
EVER: Final = {"begin_ms": 0, "end_ms": 1 << 62}


class WrongStore(AssertionError):
    """What the simulation found; the seed replays it."""


class SimulatedClock:
    def __init__(self) -> None:
        self.ms = 1_700_000_000_000
        #: What a jump of the clock does not touch.
        self.passed_ms = 0

    def now_ms(self) -> int:
        return self.ms

    def monotonic(self) -> float:
        return self.passed_ms / 1000

    def advance(self, ms: int) -> None:
        self.ms += ms
        self.passed_ms += ms


@dataclass(slots=True)
class Entry:
    """One message of the model; ``log_offset`` is -1 as long as nobody knows whether it was stored."""

    topic: str
    queue_id: int
    body: bytes
    properties: str
    sysflag: int
    log_offset: int = -1
    end_offset: int = -1
    queue_offset: int = -1
    is_deleted: bool = False

    @property
    def is_queued(self) -> bool:
        return not self.sysflag & Sysflag.PREPARED

    @property
    def facts(self) -> tuple[object, ...]:
        """What a record that was read must equal."""
        return (
            self.log_offset,
            self.end_offset - self.log_offset,
            self.topic,
            self.queue_id,
            self.queue_offset,
            self.sysflag,
            self.body,
            self.properties,
        )


@dataclass(slots=True)
class Model:
    """What the store should hold: its messages in log order, and how far they are flushed."""

    entries: list[Entry] = field(default_factory=list)
    flushed: int = 0
    #: Messages of a call that did not return: a prefix of them may have been stored.
    limbo: list[Entry] = field(default_factory=list)
    #: A topic whose deletion did not return.
    deleting: str = ""

    def queue(self, topic: str, queue_id: int) -> list[Entry]:
        return [
            entry
            for entry in self.entries
            if entry.topic == topic and entry.queue_id == queue_id and entry.is_queued and not entry.is_deleted
        ]

    def delete(self, topic: str) -> None:
        for entry in self.entries:
            if entry.topic == topic:
                entry.is_deleted = True


@dataclass(slots=True, frozen=True)
class Options:
    """What differs from seed to seed."""

    config: StoreConfig
    page_bytes: int
    names_in_order: bool
    capacity_bytes: int | None
    clock_jumps: bool
    #: Bits rot while the store is closed or dead.
    rots: bool

    @classmethod
    def choose(cls, random: Random, *, rots: bool) -> Options:
        segment_bytes = random.choice((4096, 4096, 8192, 20_000))
        config = StoreConfig(
            store_path_root_dir=ROOT,
            mapped_file_size_commit_log=segment_bytes,
            mapped_file_size_consume_queue=random.choice((100, 400, 6000)),
            max_hash_slot_num=random.choice((3, 50)),
            max_index_num=random.choice((10, 100)),
            message_index_enable=random.random() < 0.9,
            flush_disk_type=random.choice((FlushDiskType.SYNC_FLUSH, FlushDiskType.ASYNC_FLUSH)),
            flush_consume_queue_thorough_interval=random.choice((1, 5_000, 60_000)),
            max_message_size=2000,
        )
        return cls(
            config=config,
            page_bytes=random.choice((512, 512, 4096)),
            names_in_order=random.random() < 0.5,
            capacity_bytes=random.choice((None, None, 60_000)),
            clock_jumps=random.random() < 0.3,
            rots=rots,
        )


class Simulation:
    """Runs one seed. ``run`` raises ``WrongStore``, or whatever the store should not have raised."""

    def __init__(self, seed: int, *, steps: int = 60, rots: bool = False) -> None:
        self.seed = seed
        self.random = Random(seed)
        self.options = Options.choose(self.random, rots=rots)
        self.clock = SimulatedClock()
        self.disk = SimulatedDisk(
            page_bytes=self.options.page_bytes,
            capacity_bytes=self.options.capacity_bytes,
            names_in_order=self.options.names_in_order,
            now_ms=self.clock.now_ms,
        )
        self.model = Model()
        self.trace: list[tuple[object, ...]] = []
        self._steps = steps
        self._store: MessageStore | None = None
        self._number = 0
        #: Steps of the disk until ``_burst``, and what happens then; steps are not counted while ``_fuse`` is negative.
        self._fuse = -1
        self._burst: Callable[[], None] = _cut_power
        self._rotten = False
        self.openings = 0

    # --- The program --------------------------------------------------------------------------------------------

    def run(self) -> None:
        self._open()
        actions = self._actions()
        for _ in range(self._steps):
            (action,) = self.random.choices([*actions], weights=[*actions.values()])
            self._do(action)
        self._fuse, self.disk.capacity_bytes = -1, None
        self._do(self._restart)
        self._store_now().close()
        self._note("end", self._digest())

    def _actions(self) -> dict[Callable[[], None], int]:
        return {
            self._put: 40,
            self._put_batch: 10,
            self._flush: 12,
            self._flush_when_due: 6,
            self._tick: 10,
            self._read: 6,
            self._search: 4,
            self._write_back: 10,
            self._delete_topic: 2,
            self._restart: 4,
            self._light_fuse: 6,
            self._end_abruptly: 4,
        }

    def _do(self, action: Callable[[], None]) -> None:
        """One action, and what follows if it does not return."""
        try:
            self.clock.advance(self.random.choice((0, 1, 1, 20, 1000, 4000)))
            if self.options.clock_jumps and self.random.random() < 0.02:
                self.clock.ms += self.random.choice((-600_000, 600_000))
            action()
        except PowerCut:
            self._note("stopped", action.__name__)
            self._after_the_end()
        except DiskFull as error:
            self._note("full", str(error))
            self._free_space()
            if action == self._restart:
                # It could not be closed, so its process ends without.
                self._after_the_end(cut_power=False)
        except StoreError as error:
            self._note("failed", str(error))
            # A store whose disk fails takes nothing any more; its operator starts it again.
            self._after_the_end(cut_power=False)

    def _note(self, *what: object) -> None:
        self.trace.append(what)

    def _store_now(self) -> MessageStore:
        assert self._store is not None
        return self._store

    # --- Calls of the store ---------------------------------------------------------------------------------------

    def _entry(self, topic: str, queue_id: int, *, is_half: bool = False) -> Entry:
        random = self.random
        self._number += 1
        body = (b"%d," % self._number * 300)[: random.choice((0, 5, 100, 400, 1000))]
        pairs = {"TAGS": random.choice(("", "red", "blue")), "KEYS": random.choice(("", *KEYS, "k0 k1"))}
        if random.random() < 0.5:
            pairs["UNIQ_KEY"] = f"{self._number:032X}"
        return Entry(topic, queue_id, body, join(pairs), Sysflag.PREPARED if is_half else 0)

    def _put(self) -> None:
        store, random = self._store_now(), self.random
        entry = self._entry(random.choice(TOPICS), random.randrange(2), is_half=random.random() < 0.05)
        self.model.limbo = [entry]
        draft = Draft(entry.topic, entry.queue_id, entry.body, entry.properties, BORN_MS, BORN, sysflag=entry.sysflag)
        with self._nothing_stored_if_refused():
            placed = store.put(draft)
            self._stored(entry, placed.log_offset, placed.end_offset, placed.queue_offset)
            self._acknowledge()

    def _put_batch(self) -> None:
        store, random = self._store_now(), self.random
        topic, queue_id = random.choice(TOPICS), random.randrange(2)
        entries = [self._entry(topic, queue_id) for _ in range(random.randint(1, 4))]
        self.model.limbo = list(entries)
        parcels = [(0, entry.body, entry.properties.encode()) for entry in entries]
        with self._nothing_stored_if_refused():
            placed = store.put_batch(topic, queue_id, parcels, born_time_ms=BORN_MS, born_host=BORN)
            ends = [*placed.log_offsets[1:], placed.end_offset]
            for number, entry in enumerate(entries):
                self._stored(entry, placed.log_offsets[number], ends[number], placed.queue_offset + number)
            self._acknowledge()

    @contextlib.contextmanager
    def _nothing_stored_if_refused(self) -> Iterator[None]:
        try:
            yield
        except StoreError:
            self.model.limbo.clear()
            raise

    def _stored(self, entry: Entry, log_offset: int, end_offset: int, queue_offset: int) -> None:
        entry.log_offset, entry.end_offset, entry.queue_offset = log_offset, end_offset, queue_offset
        expected = len(self.model.queue(entry.topic, entry.queue_id)) if entry.is_queued else 0
        self._same("queue offset", expected, queue_offset)
        self.model.entries.append(entry)
        self.model.limbo.remove(entry)
        self._note("put", entry.topic, entry.queue_id, log_offset, end_offset, queue_offset)

    def _acknowledge(self) -> None:
        """Under SYNC_FLUSH a sender is answered when the disk has it; sometimes several at once."""
        if self.options.config.flush_disk_type is FlushDiskType.SYNC_FLUSH and self.random.random() < 0.7:
            self._flush()

    def _flush(self) -> None:
        store = self._store_now()
        store.flush_now()
        self._same("flushed", store.written, store.flushed.value)
        self._heard()

    def _flush_when_due(self) -> None:
        """What the flush thread does on its own."""
        flusher = self._store_now()._running()
        try:
            flusher._flush_log(self.options.config.flush_disk_type is FlushDiskType.SYNC_FLUSH)
        except StoreError as error:
            flusher._fail(error)
            raise
        self._heard()

    def _heard(self) -> None:
        self.model.flushed = max(self.model.flushed, self._store_now().flushed.value)
        self._note("flushed", self.model.flushed)

    def _tick(self) -> None:
        self._store_now().tick()
        self._note("tick")

    def _write_back(self) -> None:
        self.disk.write_back(self.random)

    def _delete_topic(self) -> None:
        topic = self.random.choice(TOPICS)
        self.model.deleting = topic
        self._store_now().delete_topics([topic])
        self.model.deleting = ""
        self.model.delete(topic)
        self._note("deleted", topic)

    # --- The end, and a new beginning -------------------------------------------------------------------------------

    def _restart(self) -> None:
        self._store_now().close()
        self.model.flushed = self._store_now().written
        self._note("closed")
        self._rot()
        self._open()

    def _end_abruptly(self) -> None:
        raise PowerCut

    def _light_fuse(self) -> None:
        """Some steps of the disk from now on, something happens."""
        random = self.random
        self._fuse = random.choice((1, 2, 3, 5, 10, 30, 100))
        self._burst = random.choice((_cut_power, _cut_power, _cut_power, _fail, _fill_up))
        self.disk.before = self._count_down

    def _count_down(self, kind: str, path: Path) -> None:
        if self._fuse > 0:
            self._fuse -= 1
            return
        if self._fuse == 0:
            self._note("burst", kind, path.name)
            if self._burst is not _fill_up:
                self._fuse = -1
            elif kind not in ("write", "claim", "create") or self.random.random() < 0.2:
                # A full disk refuses several steps, but only those that need space.
                self._fuse = -1
                return
            self._burst()

    def _free_space(self) -> None:
        self._fuse = -1
        if self.disk.capacity_bytes is not None:
            self.disk.capacity_bytes += 30_000

    def _after_the_end(self, *, cut_power: bool | None = None) -> None:
        """The power is cut or the process dies, and the store is opened again."""
        while True:
            self._fuse = -1
            if self.random.random() < 0.6 if cut_power is None else cut_power:
                self.disk.power_cut(self.random)
                self._note("power cut")
            else:
                self.disk.die()
                self._note("process died")
            if self.random.random() < 0.3:
                self._light_fuse()
                self._burst = _cut_power
            try:
                self._rot()
                self._open()
            except PowerCut:
                self._note("stopped while opening")
                cut_power = None
            else:
                return

    def _rot(self) -> None:
        if not self.options.rots:
            return
        paths = [path for path in self.disk.files() if path.parts[2] in ("commitlog", "consumequeue", "index")]
        if paths:
            path = self.random.choice(paths)
            bit = self.random.randrange(len(self.disk.files()[path]) * 8)
            self.disk.flip_bit(path, bit)
            self._rotten = True
            self._note("rot", str(path), bit)

    def _open(self) -> None:
        store = MessageStore(self.options.config, store_host=HOST, clock=self.clock, disk=self.disk, threads=False)
        self.openings += 1
        while True:
            try:
                store.open()
                break
            except DiskFull:
                self._free_space()
                self._note("no space to open")
                store = MessageStore(
                    self.options.config, store_host=HOST, clock=self.clock, disk=self.disk, threads=False
                )
        self._store = store
        hook, self.disk.before = self.disk.before, None
        self._note("opened", store.written)
        self._check_log()
        self._check_queues()
        self._check_fold()
        self.disk.before = hook

    # --- What must hold -----------------------------------------------------------------------------------------

    def _same(self, what: str, expected: object, actual: object) -> None:
        if expected != actual:
            raise WrongStore(f"seed {self.seed}: {what} is {actual!r}, and should be {expected!r}")

    def _check_log(self) -> None:
        """The log is what was put, up to some point behind all that was flushed."""
        store, model = self._store_now(), self.model
        if store.written < model.flushed:
            raise WrongStore(f"seed {self.seed}: the log ends at {store.written}, but {model.flushed} was acknowledged")
        found = list(store._log.walk(store.min_log_offset)) if store.written else []
        candidates = [*model.entries, *model.limbo]
        kept: list[Entry] = []
        for record, entry in zip(found, candidates, strict=False):
            if entry.log_offset < 0:
                entry.log_offset, entry.end_offset = record.log_offset, record.log_offset + record.size
                before = [other for other in kept if other.is_queued and not other.is_deleted]
                entry.queue_offset = (
                    sum((other.topic, other.queue_id) == (entry.topic, entry.queue_id) for other in before)
                    * entry.is_queued
                )
            self._same("record", entry.facts, _facts(record))
            kept.append(entry)
        self._same("records", len(kept), len(found))
        self._same("end of the log", store.written, self._end_of(kept))
        self._note("kept", len(kept), "of", len(candidates))
        model.entries, model.limbo = kept, []
        model.flushed = store.flushed.value

    def _end_of(self, kept: list[Entry]) -> int:
        """Where the log must end: behind its last record, or where the next segment begins if a blank follows."""
        end = kept[-1].end_offset if kept else 0
        written, size = self._store_now().written, self.options.config.mapped_file_size_commit_log
        return written if written == -(-end // size) * size else end

    def _check_queues(self) -> None:
        store, model = self._store_now(), self.model
        if model.deleting:
            queues = [(topic, queue_id) for topic, queue_id in store.queues() if topic == model.deleting]
            if not any(store.max_offset(*queue) for queue in queues):
                model.delete(model.deleting)
            model.deleting = ""
        for topic in TOPICS:
            for queue_id in range(2):
                self._check_queue(topic, queue_id)

    def _check_queue(self, topic: str, queue_id: int) -> None:
        store = self._store_now()
        expected = self.model.queue(topic, queue_id)
        self._same(f"length of {topic}/{queue_id}", len(expected), store.max_offset(topic, queue_id))
        found: list[tuple[object, ...]] = []
        while len(found) < len(expected):
            result = store.get(topic, queue_id, len(found), count_max=32)
            self._same(f"status of {topic}/{queue_id}", GetStatus.FOUND, result.status)
            for buffer in result.buffers:
                found += map(_facts, unpack_records(buffer))
        for number, entry in enumerate(expected):
            self._same(
                f"message {number} of {topic}/{queue_id}", (number, entry.facts), (entry.queue_offset, found[number])
            )

    def _check_fold(self) -> None:
        """Queues and index equal those of a store that has nothing but the log."""
        store = self._store_now()
        if self.random.random() < 0.5 and store._index is not None:
            capacity, self.disk.capacity_bytes = self.disk.capacity_bytes, None
            store._index.write_out()
            self.disk.capacity_bytes = capacity
        else:
            return
        disk = self.disk.copy()
        for name in ("consumequeue", "index", "checkpoint", "abort"):
            disk.remove(ROOT / name)
        fresh = MessageStore(self.options.config, store_host=HOST, clock=self.clock, disk=disk, threads=False)
        fresh.open()
        if fresh._index is not None:
            fresh._index.write_out()
        self._same("queues", _queues(fresh), _queues(store))
        self._same("index", _index(fresh), _index(store))

    def _read(self) -> None:
        random = self.random
        self._check_queue(random.choice(TOPICS), random.randrange(2))

    def _search(self) -> None:
        store, topic, key = self._store_now(), self.random.choice(TOPICS), self.random.choice(KEYS)
        if store._index is None:
            return
        found = [
            _facts(record)
            for buffer in store.query(topic, key, count_max=64, **EVER).buffers
            for record in unpack_records(buffer)
        ]
        expected = [
            entry.facts
            for entry in self.model.entries
            if entry.topic == topic and key in (find(entry.properties, "KEYS") or "").split()
        ]
        self._same(f"records of {topic} with {key}", expected[-64:], found)

    def _digest(self) -> str:
        digest = hashlib.sha1()
        for path, data in self.disk.files().items():
            digest.update(str(path).encode())
            digest.update(data)
        return digest.hexdigest()


def _cut_power() -> None:
    raise PowerCut


def _fail() -> None:
    raise StoreError("cannot use the disk: Input/output error")


def _fill_up() -> None:
    raise DiskFull("cannot write: no space left")


def _facts(record: Any) -> tuple[object, ...]:
    return (
        record.log_offset,
        record.size,
        record.topic,
        record.queue_id,
        record.queue_offset,
        record.sysflag,
        bytes(record.body),
        record.properties,
    )


def _queues(store: MessageStore) -> dict[tuple[str, int], tuple[int, int, bytes]]:
    found = {}
    for queue in store._queues:
        entries = bytearray()
        at = queue.min_offset
        while at < queue.next_offset:
            data = queue.read(at, queue.next_offset - at)
            entries += data
            at += len(data) // 20
        if entries:
            found[queue.topic, queue.queue_id] = (queue.min_offset, queue.next_offset, bytes(entries))
    return dict(sorted(found.items()))


def _index(store: MessageStore) -> list[bytes]:
    """The files, but for an empty one, which only says that there is nothing to say."""
    return [bytes(file.segment.page) for file in store._index._files if not file.is_empty] if store._index else []
