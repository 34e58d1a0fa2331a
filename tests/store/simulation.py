"""One seed, one life of a store on a simulated disk: random calls, faults between any two steps, and what must hold.

A program puts, flushes, ticks, reads, cleans, closes, deletes topics, and lets the kernel write back what it wants. A
*fuse* of some steps of the disk burns down meanwhile, also inside recovery: then the power is cut, the process dies, or
the disk fills up or fails. After each opening the store is compared with a list of what was put (``sim_model``):

- nothing is lost that was flushed, and only from the end (C6, C8);
- every record that is served is one that was put, at the place that its sender was told (C1, C2);
- queues and index equal those of a fresh store that has nothing but the log (C5);
- a derived part (``waiting_part``) has folded each of its records once, also those that retention has deleted since.

``run`` is for that. ``rot`` lets bits of the files flip once everything has ended, and then wants to see an error or
what was put. The same seed gives the same ``trace``, whatever the process.
"""

from __future__ import annotations

import contextlib
import hashlib
from collections.abc import Callable, Iterator
from pathlib import Path
from random import Random
from typing import Final
from zlib import crc32

from ternmq.errors import CorruptFile, CorruptRecord, DiskFull, StoreError
from ternmq.store.config import FlushDiskType
from ternmq.store.log.draft import Draft
from ternmq.store.store import MessageStore
from ternmq.testing.disk import PowerCut, SimulatedDisk
from ternmq.wire.layouts.queue_entry import ENTRY, ENTRY_BYTES
from ternmq.wire.properties import join
from ternmq.wire.record import Sysflag, pack_host, unpack_records
from tests.store.sim_model import (
    KEYS,
    PART_TOPICS,
    QUEUES,
    ROOT,
    TOPICS,
    Entry,
    Facts,
    Model,
    Options,
    SimulatedClock,
    facts_of,
)
from tests.store.waiting_part import WaitingPart

HOST: Final = pack_host("127.0.0.1", 10911)
BORN: Final = pack_host("10.0.0.7", 40000)
BORN_MS: Final = 1_700_000_000_000
HOUR_MS: Final = 3_600_000
#: Steps of the disk that need space.
PART: Final = ROOT / "waiting"
GREEDY: Final = frozenset({"write", "claim", "create"})


class WrongStore(AssertionError):
    """What the simulation found; the seed replays it."""


class Simulation:
    """Runs one seed. Raises ``WrongStore``, or whatever the store should not have raised."""

    def __init__(self, seed: int, *, actions: int = 60) -> None:
        self.seed = seed
        self.random = Random(seed)
        self.options = Options.choose(self.random)
        self.clock = SimulatedClock()
        self.disk = SimulatedDisk(
            page_bytes=self.options.page_bytes,
            capacity_bytes=self.options.capacity_bytes,
            names_in_order=self.options.names_in_order,
            now_ms=self.clock.now_ms,
        )
        self.model = Model()
        self.trace: list[tuple[object, ...]] = []
        #: For statistics.
        self.openings = 0
        self._actions = actions
        self._store: MessageStore | None = None
        #: The derived part of the store, and where the log began when it was opened.
        self._part: WaitingPart | None = None
        self._newest_part = WaitingPart(self.disk, PART, PART_TOPICS)
        self._begin = 0
        self._number = 0
        #: Steps of the disk until something happens, and what; below 0 nothing does.
        self._fuse = -1
        self._burst: Callable[[], None] = _cut_power

    def run(self) -> None:
        self._open()
        self._act()
        self._fuse, self.disk.capacity_bytes = -1, None
        self._do(self._restart)
        self._do(self._close)
        self._note("end", self._digest())

    def rot(self) -> None:
        self._open()
        self._act()
        self._fuse = -1
        with contextlib.suppress(StoreError):
            self.random.choice((self._close, lambda: None))()
        self.random.choice((self.disk.die, lambda: self.disk.power_cut(self.random)))()
        for _ in range(self.random.randint(1, 3)):
            self._flip_a_bit()
        self.disk.capacity_bytes = None
        self._check_nothing_wrong_is_served()

    # --- The program --------------------------------------------------------------------------------------------

    def _weights(self) -> dict[Callable[[], None], int]:
        """What the program does, and how often."""
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
            self._clean: 2,
            self._restart: 4,
            self._light_fuse: 6,
            self._end_abruptly: 4,
        }

    def _act(self) -> None:
        weights = self._weights()
        for action in self.random.choices([*weights], weights=[*weights.values()], k=self._actions):
            self._do(action)

    def _do(self, action: Callable[[], None]) -> None:
        """One action, and what follows if it does not return."""
        try:
            self.clock.advance(self.random.choice((0, 1, 1, 20, 1000, 4000)))
            if self.options.clock_jumps and self.random.random() < 0.02:
                self.clock.wall_ms += self.random.choice((-600_000, 600_000))
            action()
        except PowerCut:
            self._note("stopped", action.__name__)
            self._after_the_end()
        except DiskFull as error:
            self._note("full", str(error))
            self._free_space()
            if action in (self._restart, self._close):
                # It could not be closed, so its process ends without.
                self._after_the_end(cut_power=False)
        except StoreError as error:
            self._note("failed", str(error))
            # A store whose disk fails takes nothing any more; its operator starts it again.
            self._after_the_end(cut_power=False)
        if self._store is not None:
            self.model.log_min = self._store.min_log_offset

    def _note(self, *what: object) -> None:
        self.trace.append(what)

    @property
    def store(self) -> MessageStore:
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
        entry = Entry(topic, queue_id, body, join(pairs), Sysflag.PREPARED if is_half else 0)
        if not is_half and random.random() < 0.2:
            waiting = [each.log_offset for each in self.model.entries if each.topic in PART_TOPICS]
            # Sometimes one that the part has never heard of.
            entry.closes = random.choice([*waiting, random.randrange(1, 5000)])
        return entry

    def _put(self) -> None:
        entry = self._entry(*self.random.choice(QUEUES), is_half=self.random.random() < 0.05)
        draft = Draft(entry.topic, entry.queue_id, entry.body, entry.properties, BORN_MS, BORN, sysflag=entry.sysflag)
        if entry.closes is not None:
            draft.closes = entry.closes
        with self._limbo([entry]):
            placed = self.store.put(draft)
            self._stored(entry, placed.log_offset, placed.end_offset, placed.queue_offset)
        self._acknowledge()

    def _put_batch(self) -> None:
        topic, queue_id = self.random.choice(QUEUES)
        entries = [self._entry(topic, queue_id) for _ in range(self.random.randint(1, 4))]
        for entry in entries:
            entry.closes = None
        parcels = [(0, entry.body, entry.properties.encode()) for entry in entries]
        with self._limbo(entries):
            placed = self.store.put_batch(topic, queue_id, parcels, born_time_ms=BORN_MS, born_host=BORN)
            lead = self.store._log.lead
            ends = [*(log_offset - lead for log_offset in placed.log_offsets[1:]), placed.end_offset]
            for number, entry in enumerate(entries):
                self._stored(entry, placed.log_offsets[number], ends[number], placed.queue_offset + number)
        self._acknowledge()

    @contextlib.contextmanager
    def _limbo(self, entries: list[Entry]) -> Iterator[None]:
        """Messages that are neither stored nor refused until the call returns. A refused one was not stored."""
        self.model.limbo = list(entries)
        try:
            yield
        except StoreError:
            self.model.limbo = []
            raise

    def _stored(self, entry: Entry, log_offset: int, end_offset: int, queue_offset: int) -> None:
        entry.log_offset, entry.end_offset, entry.queue_offset = log_offset, end_offset, queue_offset
        expected = len(self.model.queue(entry.topic, entry.queue_id)) if entry.is_queued else 0
        self._same("queue offset", expected, queue_offset)
        self.model.entries.append(entry)
        self.model.limbo.remove(entry)
        self._note("put", entry.topic[:9], entry.queue_id, log_offset, end_offset, queue_offset)

    def _acknowledge(self) -> None:
        """Under SYNC_FLUSH a sender is answered when the disk has it; sometimes several at once."""
        if self.options.config.flush_disk_type is FlushDiskType.SYNC_FLUSH and self.random.random() < 0.7:
            self._flush()

    def _flush(self) -> None:
        self.store.flush_now()
        self._same("flushed", self.store.written, self.store.flushed.value)
        self._hear()

    def _flush_when_due(self) -> None:
        """What the flush thread does on its own."""
        self.store.flush_when_due()
        self._hear()

    def _hear(self) -> None:
        self.model.flushed = max(self.model.flushed, self.store.flushed.value)
        self._note("flushed", self.model.flushed)

    def _tick(self) -> None:
        self.store.tick()
        self._check_part_is_kept()
        self._note("tick")

    def _write_back(self) -> None:
        self.disk.write_back(self.random)

    def _delete_topic(self) -> None:
        topic = self.random.choice(TOPICS)
        self.model.limbo_topic = topic
        self.store.delete_topics([topic])
        self.model.limbo_topic = ""
        self.model.delete(topic)
        self._note("deleted", topic[:9])

    def _clean(self) -> None:
        """Segments that were not written to for an hour go."""
        self.clock.advance(self.random.choice((HOUR_MS // 2, HOUR_MS)))
        self.store.retention.ask()
        self.store.tick()
        self._check_part_is_kept()
        self._note("cleaned", self.store.min_log_offset)

    # --- The end, and a new beginning -------------------------------------------------------------------------------

    def _close(self) -> None:
        self.store.close()
        self.model.flushed = self.store.written
        self._note("closed")

    def _restart(self) -> None:
        self._close()
        self._open()

    def _end_abruptly(self) -> None:
        raise PowerCut

    def _light_fuse(self) -> None:
        """Some steps of the disk from now on, something happens."""
        self._fuse = self.random.choice((1, 2, 3, 5, 10, 30, 100))
        self._burst = self.random.choice((_cut_power, _cut_power, _cut_power, _fail, _fill_up))

    def _before(self, kind: str, path: Path) -> None:
        """What precedes each step of the disk."""
        if kind == "sync" and self.options.sync_ms_max:
            self.clock.advance(self.random.randint(0, self.options.sync_ms_max))
        if self._fuse > 0:
            self._fuse -= 1
        elif self._fuse == 0:
            self._note("burst", kind, path.name)
            if self._burst is not _fill_up:
                self._fuse = -1
            elif kind not in GREEDY or self.random.random() < 0.2:
                # A full disk refuses several steps, but only those that need space.
                self._fuse = -1
                return
            self._burst()

    def _free_space(self) -> None:
        self._fuse = -1
        if self.disk.capacity_bytes is not None:
            self.disk.capacity_bytes += 30_000

    def _after_the_end(self, *, cut_power: bool | None = None) -> None:
        """The power is cut or the process dies, and the store is opened again, perhaps not at the first attempt."""
        self.model.log_min = self.store.min_log_offset
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
                self._open()
            except PowerCut:
                self._note("stopped while opening")
                cut_power = None
            else:
                return

    def _open(self) -> None:
        self.disk.before = self._before
        while True:
            try:
                store = self._new_store(self.disk)
            except DiskFull:
                self._note("no space to open")
                self._free_space()
            else:
                break
        self._store = store
        self._begin = store.min_log_offset
        self.openings += 1
        self._note("opened", store.written)
        self.disk.before = None
        self._check_log()
        self._check_queues()
        self._check_part()
        if self.random.random() < 0.5:
            self._check_fold()
        self.disk.before = self._before

    def _new_store(self, disk: SimulatedDisk) -> MessageStore:
        return MessageStore.open(
            self.options.config,
            store_host=HOST,
            clock=self.clock,
            disk=disk,
            derived=[self._new_part(disk)],
            threads=False,
        )

    def _new_part(self, disk: SimulatedDisk) -> WaitingPart:
        part = self._newest_part = WaitingPart(disk, PART, PART_TOPICS)
        if disk is self.disk:
            self._part = part
        return part

    @property
    def part(self) -> WaitingPart:
        assert self._part is not None
        return self._part

    # --- What must hold -----------------------------------------------------------------------------------------

    def _same(self, what: str, expected: object, actual: object) -> None:
        if expected != actual:
            raise WrongStore(f"seed {self.seed}: {what} is {actual!r}, and should be {expected!r}")

    def _check_log(self) -> None:
        """The log is what was put, up to some point behind all that was flushed."""
        store, model = self.store, self.model
        if store.written < model.flushed:
            raise WrongStore(f"seed {self.seed}: the log ends at {store.written}, but {model.flushed} was acknowledged")
        if store.min_log_offset > model.log_min:
            raise WrongStore(f"seed {self.seed}: the log begins at {store.min_log_offset}, it was {model.log_min}")
        model.log_min = store.min_log_offset
        gone = [entry for entry in model.entries if entry.log_offset < model.log_min]
        candidates = [*model.entries[len(gone) :], *model.limbo]
        found = list(store._log.walk(store.min_log_offset)) if store.written else []
        model.entries, model.limbo = list(gone), []
        for record, entry in zip(found, candidates, strict=False):
            if entry.log_offset < 0:
                # Of a call that did not return. It got the next place, and nothing else can stand there.
                entry.log_offset, entry.end_offset = record.log_offset, record.log_offset + record.size
                entry.queue_offset = len(model.queue(entry.topic, entry.queue_id)) if entry.is_queued else 0
            self._same("record", entry.facts, facts_of(record))
            model.entries.append(entry)
        self._same("number of records", len(model.entries) - len(gone), len(found))
        self._same("end of the log", self._log_end(), store.written)
        self._note("kept", len(found), "of", len(candidates))
        model.flushed = store.flushed.value

    def _log_end(self) -> int:
        """Where the log must end: behind its last record, or where the next segment begins if a blank follows."""
        end = self.model.entries[-1].end_offset if self.model.entries else 0
        size = self.options.config.mapped_file_size_commit_log
        return self.store.written if self.store.written == -(-end // size) * size else end

    def _check_queues(self) -> None:
        model = self.model
        if model.limbo_topic:
            if not any(self._length(*queue) for queue in QUEUES if queue[0] == model.limbo_topic):
                model.delete(model.limbo_topic)
            model.limbo_topic = ""
        for topic, queue_id in QUEUES:
            self._check_queue(topic, queue_id)

    def _check_queue(self, topic: str, queue_id: int) -> None:
        store, name = self.store, f"{topic[:9]}/{queue_id}"
        expected = self._visible(self.model.queue(topic, queue_id))
        self._same(f"length of {name}", len(expected), store.max_offset(topic, queue_id))
        found = self._read_queue(topic, queue_id)
        for entry in expected:
            if entry.log_offset >= store.min_log_offset:
                self._same(f"message {entry.queue_offset} of {name}", entry.facts, found.get(entry.queue_offset))

    def _read_queue(self, topic: str, queue_id: int) -> dict[int, Facts]:
        """All messages of a queue, as a consumer reads them."""
        store = self.store
        found: dict[int, Facts] = {}
        queue_offset = store.min_offset(topic, queue_id)
        while queue_offset < store.max_offset(topic, queue_id):
            result = store.get(topic, queue_id, queue_offset, count_max=32)
            for buffer in result.buffers:
                found |= {record.queue_offset: facts_of(record) for record in unpack_records(buffer)}
            assert result.next_offset > queue_offset, result
            queue_offset = result.next_offset
        return found

    def _check_fold(self) -> None:
        """Queues and index equal those of a store that has nothing but the log."""
        store = self.store
        if store._index is not None:
            capacity_bytes, self.disk.capacity_bytes = self.disk.capacity_bytes, None
            store._index.write_out()
            self.disk.capacity_bytes = capacity_bytes
        disk = self.disk.copy()
        for name in ("consumequeue", "consumequeue_ext", "index", "checkpoint", "abort", PART.name):
            disk.remove(ROOT / name)
        fresh = self._new_store(disk)
        fresh_part = self._newest_part
        self._folded_again(fresh)
        kept = {at: each for at, each in self.part.content.items() if at >= fresh.min_log_offset}
        self._same("content of the part, folded again", fresh_part.content, kept)
        if fresh._index is not None:
            fresh._index.write_out()
        has_units = self.options.config.enable_consume_queue_ext
        self._same("queues", _queues(fresh, with_tags=not has_units), _queues(store, with_tags=not has_units))
        if not store.min_log_offset:
            self._same("index", _index(fresh), _index(store))

    def _check_part(self) -> None:
        """The part has folded all records that can be read or could be once, whatever retention has deleted."""
        expected: dict[int, tuple[int, int, int]] = {}
        for entry in self._visible(self.model.entries):
            if entry.topic in PART_TOPICS:
                expected[entry.log_offset] = (entry.end_offset - entry.log_offset, crc32(entry.body), 0)
            if entry.closes is not None and entry.closes in expected:
                expected[entry.closes] = (*expected[entry.closes][:2], entry.log_offset)
        self._same("content of the part", expected, self.part.content)

    def _check_part_is_kept(self) -> None:
        """No record is deleted that the part does not have on the disk."""
        if self.store.min_log_offset > max(self._begin, self.part.on_disk):
            self._same("begin of the log", (self._begin, self.part.on_disk), self.store.min_log_offset)

    def _visible(self, entries: list[Entry]) -> list[Entry]:
        """Those of some messages that can be read."""
        return entries

    def _length(self, topic: str, queue_id: int) -> int:
        """How many messages a queue has had, visible or not."""
        return self.store.max_offset(topic, queue_id)

    def _folded_again(self, fresh: MessageStore) -> None:
        """Bring a store that has nothing but the log as far as ours."""

    def _read(self) -> None:
        self._check_queue(*self.random.choice(QUEUES))
        self._check_part()

    def _search(self) -> None:
        topic, key = self.random.choice(TOPICS), self.random.choice(KEYS)
        if self.options.config.message_index_enable:
            expected = [entry.facts for entry in self._visible(self.model.with_key(topic, key))]
            self._same(f"records of {topic[:9]} with {key}", expected[-64:], self._find(topic, key))

    def _find(self, topic: str, key: str) -> list[Facts]:
        result = self.store.query(topic, key, count_max=64, begin_ms=0, end_ms=1 << 62)
        return [facts_of(record) for buffer in result.buffers for record in unpack_records(buffer)]

    def _digest(self) -> str:
        digest = hashlib.sha1()
        for path, data in self.disk.files().items():
            digest.update(str(path).encode())
            digest.update(data)
        return digest.hexdigest()

    # --- Rot ----------------------------------------------------------------------------------------------------

    def _flip_a_bit(self) -> None:
        rotten = ("commitlog", "consumequeue", "index", "checkpoint")
        files = [path for path, data in self.disk.files().items() if path.parts[2] in rotten and data]
        if files:
            path = self.random.choice(files)
            at = self.random.randrange(len(self.disk.files()[path]))
            if path.parts[2] == "commitlog" and not self._is_covered(int(path.name) + at):
                return
            self.disk.flip_bit(path, at * 8 + self.random.randrange(8))
            self._note("rot", str(path), at)

    def _is_covered(self, log_offset: int) -> bool:
        """Whether a record would betray a change of this byte. RocketMQ's layout has a CRC for the body only."""
        for entry in self.model.entries:
            if entry.log_offset <= log_offset < entry.end_offset:
                at = log_offset - entry.log_offset
                return at < 12 or 28 <= at < 36 or 84 <= at < 88 + len(entry.body)
        return True

    def _check_nothing_wrong_is_served(self) -> None:
        known = {entry.log_offset: entry for entry in [*self.model.entries, *self.model.limbo]}
        try:
            self._store = self._new_store(self.disk)
        except StoreError as error:
            self._note("refused", str(error))
            if "/store/" not in str(error):
                raise WrongStore(f"seed {self.seed}: a refusal that names no file: {error}") from None
            return
        for topic, queue_id in QUEUES:
            try:
                found = self._read_queue(topic, queue_id)
            except (CorruptFile, CorruptRecord) as error:
                self._note("error", str(error))
                continue
            for queue_offset, facts in found.items():
                entry = known.get(facts[0])
                self._same("topic and queue", (topic, queue_id), facts[2:4])
                if entry is not None and entry.log_offset >= 0:
                    self._same(f"message {queue_offset}", entry.facts, facts)
        for topic in TOPICS:
            for key in KEYS:
                with contextlib.suppress(CorruptRecord):
                    for facts in self._find(topic, key):
                        self._same(f"record with {key}", known[facts[0]].facts, facts)


def _cut_power() -> None:
    raise PowerCut


def _fail() -> None:
    raise StoreError("cannot use the disk: Input/output error")


def _fill_up() -> None:
    raise DiskFull("cannot write: no space left")


def _queues(store: MessageStore, *, with_tags: bool) -> dict[tuple[str, int], tuple[int, int, list[tuple[int, ...]]]]:
    """Min offset, max offset and entries of each queue that has any. Addresses of units may differ, records may not."""
    found = {}
    for queue in store._queues:
        data = bytearray()
        while len(data) // ENTRY_BYTES < queue.next_offset - queue.min_offset:
            at = queue.min_offset + len(data) // ENTRY_BYTES
            data += queue.read(at, queue.next_offset - at)
        if data:
            entries = [entry[: 3 if with_tags else 2] for entry in ENTRY.iter_unpack(data)]
            found[queue.topic, queue.queue_id] = (queue.min_offset, queue.next_offset, entries)
    return dict(sorted(found.items()))


def _index(store: MessageStore) -> list[bytes]:
    """The files, but for an empty one, which only says that there is nothing to say."""
    return [bytes(file.segment.page) for file in store._index._files if not file.is_empty] if store._index else []
