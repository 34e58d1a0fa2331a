"""Everything that can be wrong with a store directory, and what it costs (C2, C4, C5, C7, C8).

One pass over the log feeds the checks of queues and index; then come checkpoint and tables. Nothing is changed, and a
broker may run meanwhile: what it has not written out yet is noted, not blamed.

Where there are compiled kernels, ordinary records of ordinary queues are checked many at a time (``_PlainRecords``).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final, Protocol

from ternmq.errors import CorruptFile
from ternmq.kernels import HAS_NATIVE, native
from ternmq.names import SCHEDULE_TOPIC
from ternmq.store.derived.dispatch import due_time
from ternmq.store.derived.key_hash import Keyed, KeyHashes
from ternmq.store.derived.light import light_places
from ternmq.store.durable.checkpoint import CHECKPOINT_BYTES
from ternmq.store.inspect.check_entries import EntryCheck
from ternmq.store.inspect.check_index import IndexCheck
from ternmq.store.inspect.check_queues import QueueCheck
from ternmq.store.inspect.faults import REBUILD, Fault, plural
from ternmq.store.inspect.scan import Damage, LogScan, OnScanned
from ternmq.store.inspect.sizes import InspectConfig
from ternmq.store.inspect.view import StoreView
from ternmq.store.log.protocol import LogPiece
from ternmq.wire.bodies.codec import Body
from ternmq.wire.bodies.groups import GroupTable
from ternmq.wire.bodies.stats import ConsumerOffsets, DelayOffsets
from ternmq.wire.bodies.topics import TopicTable
from ternmq.wire.record import TOPIC_V1_BYTES_MAX, Record, Sysflag
from ternmq.wire.tags import TagsCodes

_TABLES: Final[dict[str, type[Body]]] = {
    "topics.json": TopicTable,
    "subscriptionGroup.json": GroupTable,
    "consumerOffset.json": ConsumerOffsets,
    "delayOffset.json": DelayOffsets,
}
#: Records whose keys are hashed together.
_KEYED_MAX: Final = 256
#: Of the log, looked at by a kernel at a time.
_PIECE_BYTES: Final = 1 << 20


@dataclass(slots=True, frozen=True)
class Verification:
    """What was looked at, and what was found."""

    records: int
    log_bytes: int
    queue_entries: int
    index_entries: int
    findings: list[Fault]

    @property
    def faults(self) -> list[Fault]:
        """What an operator has to look at."""
        return [finding for finding in self.findings if not finding.is_note]


class Check(Protocol):
    """Compares what is folded from the log, beside queues and index, with the log."""

    @property
    def topics(self) -> Collection[str]:
        """Whose records it needs, beside those that close others."""
        ...

    def expect(self, record: Record) -> None:
        """Told the whole records that it needs, and perhaps others, in the order of the log."""
        ...

    def faults(self) -> Iterator[Fault]:
        """What is wrong, when all records were told."""
        ...


def verify(
    root: Path,
    config: InspectConfig | None = None,
    *,
    checks: Sequence[Callable[[StoreView], Check]] = (),
    progress: Callable[[int, int], object] | None = None,
) -> Verification:
    """Check all of a directory, and by ``checks`` what this package does not know. ``progress`` is told of bytes done
    and all bytes.

    Raises ``StoreError`` for what is no store, or cannot be read; ``CorruptFile`` for log files that do not fit.
    """
    findings: list[Fault] = []
    view = StoreView(root, config, on_corrupt=lambda error: findings.append(_file_of_queue(error)))
    total_bytes = len(view.log.starts) * view.sizes.segment
    told: OnScanned | None = (lambda done: progress(done, total_bytes)) if progress is not None else None
    scan = LogScan(view.log, next_data=view.next_data, progress=told)
    derived, entries = _DerivedCheck(view, scan), EntryCheck(view)
    others = [check(view) for check in checks]
    plain = _PlainRecords(view, derived, entries, told=frozenset(topic for check in others for topic in check.topics))
    if HAS_NATIVE:
        scan.take = plain.take
    confirmed = view.confirmed
    for record in scan:
        plain.store_time_ms = record.store_time_ms
        entries.expect(record)
        if confirmed is None or record.log_offset < confirmed:
            derived.expect(record)
            if HAS_NATIVE:
                plain.learn(record)
            for other in others:
                other.expect(record)
    of_derived = [*derived.faults()]
    findings += _log_faults(view, scan, derived.lost)
    findings += entries.faults()
    findings += of_derived
    findings += [fault for other in others for fault in other.faults()]
    findings += _checkpoint_faults(view, plain.store_time_ms)
    findings += _table_faults(view)
    return Verification(
        scan.records,
        scan.position - view.log.begin,
        sum(queue.next_offset - queue.min_offset for queue in view.queues),
        derived.index.files.entries,
        findings,
    )


class _PlainRecords:
    """Checks the ordinary records of ordinary queues by a compiled kernel; what it leaves is checked one by one. Both
    find the same."""

    def __init__(self, view: StoreView, derived: _DerivedCheck, entries: EntryCheck, *, told: Collection[str]) -> None:
        """Records of the topics in ``told`` are left to others."""
        self._view = view
        self._derived = derived
        self._entries = entries
        self._told = told
        #: Length and topic as a record has them, and queue id → what is expected of the queue.
        self._known: dict[tuple[bytes, int], tuple[QueueCheck]] = {}
        self._piece: LogPiece | None = None
        #: Store time of the last record of the log so far; 0 without one.
        self.store_time_ms = 0

    def learn(self, record: Record) -> None:
        """Further records of the queue of this one may be taken together, if nothing is special about it."""
        view, topic = self._view, record.topic
        check = self._derived.queue_check(topic, record.queue_id)
        field = topic.encode()
        if (
            check is not None
            and len(field) <= TOPIC_V1_BYTES_MAX
            and "\0" not in topic
            and topic != SCHEDULE_TOPIC
            and topic not in self._told
            and topic not in view.deleted
            and not view.queues.has_light
        ):
            self._known[bytes((len(field),)) + field, record.queue_id] = (check,)

    def take(self, position: int) -> tuple[int, int]:
        """As ``LogScan.take``."""
        piece = self._piece
        if piece is None or not piece.begin <= position < piece.begin + len(piece.data):
            piece = self._piece = self._read(position)
            if piece is None:
                return 0, position
        lead, at = piece.form.lead, position - piece.begin
        behind, _, count, store_time_ms, runs, made, _ = native.scan(
            piece.data,
            at + lead,
            begin=piece.begin,
            has_headers=piece.form.is_raft,
            before=None,
            check_crc=True,
            known=self._known,
            indexed=-1,
        )
        if not count:
            return 0, position
        behind -= lead
        self.store_time_ms = store_time_ms
        if piece.form.is_raft:
            self._entries.expect_all(memoryview(piece.data)[at:behind], position)
        self._derived.expect_plain([(check, entries) for check, entries, _, _ in runs], made)
        return count, piece.begin + behind

    def _read(self, position: int) -> LogPiece | None:
        confirmed = self._view.confirmed
        length_bytes = _PIECE_BYTES if confirmed is None else min(_PIECE_BYTES, confirmed - position)
        return self._view.log.read(position, length_bytes) if length_bytes > 0 else None


class _DerivedCheck:
    """Tells the checks of queues and index what each record must have left there."""

    def __init__(self, view: StoreView, scan: LogScan) -> None:
        self._view = view
        self._scan = scan
        self._deleted = view.deleted.is_deleted
        self.index = IndexCheck(view, lambda log_offset: scan.damage_at(log_offset) is not None)
        #: By begin of a damaged place in the log: how many queue entries lead there.
        self.lost: Counter[int] = Counter()
        self._queues: dict[tuple[str, int], QueueCheck] = {}
        self._hashes = KeyHashes()
        self._keyed: list[Keyed] = []
        self._tags = TagsCodes()

    def expect(self, record: Record) -> None:
        topic, properties, log_offset = record.topic, record.properties, record.log_offset
        if not record.sysflag & Sysflag.PREPARED and not self._deleted(topic, log_offset):
            check = self._queues.get((topic, record.queue_id)) or self._check(topic, record.queue_id)
            tags_code = self._tags_code(record)
            check.expect(record.queue_offset, log_offset, record.size, tags_code)
            if self._view.queues.has_light:
                for light, queue_offset in light_places(properties):
                    check = self._queues.get((light, 0)) or self._check(light, 0)
                    check.expect(queue_offset, log_offset, record.size, tags_code)
        if record.sysflag & Sysflag.TRANSACTION_MASK != Sysflag.ROLLBACK:
            self._keyed.append((topic, properties, log_offset, record.store_time_ms))
            if len(self._keyed) >= _KEYED_MAX:
                self._expect_keys()

    def expect_plain(self, runs: Iterable[tuple[QueueCheck, bytes]], made: bytes) -> None:
        """Records of some queues, by the entries that they must have there, and their entries in the index."""
        self._expect_keys()
        for check, entries in runs:
            check.expect_all(entries)
        self.index.expect_made(made)

    def queue_check(self, topic: str, queue_id: int) -> QueueCheck | None:
        """What is expected of a queue; None if no record of it has come yet."""
        return self._queues.get((topic, queue_id))

    def _check(self, topic: str, queue_id: int) -> QueueCheck:
        key = (topic, queue_id)
        check = self._queues[key] = QueueCheck(key, self._view.queues.table.get(key), self._is_damaged)
        return check

    def _is_damaged(self, log_offset: int) -> bool:
        begin = self._scan.damage_at(log_offset)
        if begin is None:
            return False
        self.lost[begin] += 1
        return True

    def _tags_code(self, record: Record) -> int:
        if record.topic == SCHEDULE_TOPIC:
            due_ms = due_time(record.properties, record.store_time_ms, self._view.delays_ms)
            if due_ms:
                return due_ms
        return self._tags.of_text(record.properties)

    def _expect_keys(self) -> None:
        self.index.expect(self._hashes.entries(self._keyed))
        self._keyed.clear()

    def faults(self) -> Iterator[Fault]:
        self._expect_keys()
        known = self._view.known_topics()
        for key in self._view.queues.table:
            if key not in self._queues:
                self._check(*key)
        for key, check in sorted(self._queues.items(), key=lambda item: item[0]):
            # RocketMQ keeps some topics in queues of another kind, and these are not ours to judge.
            if key[0] not in self._view.queues.foreign:
                yield from check.faults(self._view, is_known=known is None or key[0] in known)
        yield from self.index.faults()


# --- The log ------------------------------------------------------------------------------------------------------


def _log_faults(view: StoreView, scan: LogScan, lost: Mapping[int, int]) -> Iterator[Fault]:
    """``lost`` tells how many queue entries lead to a damaged place."""
    for damaged in scan.damages:
        begin, behind = damaged.begin, plural(damaged.records_behind, "record")
        is_lost = damaged.kind is not Damage.NO_BLANK
        what = plural(lost[begin], "message") if lost.get(begin) else f"what was in {damaged.end - begin:,} bytes"
        yield Fault(
            kind={Damage.CRC: "record-crc", Damage.LENGTH: "record-length", Damage.NO_BLANK: "segment-end"}.get(
                damaged.kind, "log-damage"
            ),
            path=view.segment_path(begin),
            at=begin,
            what=f"at log offset {begin:,}: {damaged.kind.value}",
            cost=(f"{what} cannot be read; " if is_lost else "")
            + f"a start that recovers from before here cuts the log, and loses the {behind} behind it",
            cure="copy the directory before a broker starts on it, and take the segment from a slave or a backup",
        )
    tail = scan.torn_tail
    if tail is None:
        return
    is_note = view.holder is not None
    yield Fault(
        kind="torn-tail",
        path=view.segment_path(tail.begin),
        at=tail.begin,
        what=f"the log ends at {tail.begin:,} with something that is no whole record: {tail.kind.value}",
        cost="none, a broker is writing"
        if is_note
        else "at most the message that was being written when the broker died, or the machine",
        cure="" if is_note else "start a broker on it: it cuts the rest off",
        is_note=is_note,
    )


def _file_of_queue(error: CorruptFile) -> Fault:
    return Fault(
        kind="file-length",
        path=error.path,
        at=0,
        what=str(error).removeprefix(error.path).strip(),
        cost="a broker does not start on it; consumers of that queue get nothing",
        cure=f"move it away, then {REBUILD}",
    )


# --- Beside the log -----------------------------------------------------------------------------------------------


def _checkpoint_faults(view: StoreView, last_ms: int) -> Iterator[Fault]:
    path = view.root / "checkpoint"
    data = view.disk.read(path)
    if data is None or len(data) != CHECKPOINT_BYTES:
        found = "is missing" if data is None else f"has {len(data):,} bytes, not {CHECKPOINT_BYTES:,}"
        yield Fault(
            kind="checkpoint",
            path=str(path),
            at=0,
            what=f"the checkpoint {found}",
            cost="none after a clean stop; after a crash the whole log is read at the start",
            cure="start and stop a broker on it",
            # A store that has taken no message needs none.
            is_note=not view.log.starts or view.holder is not None,
        )
        return
    checkpoint = view.checkpoint
    ahead = max(checkpoint.log_time_ms, checkpoint.queue_time_ms) - last_ms
    if ahead > 0 and view.holder is None:
        yield Fault(
            kind="checkpoint",
            path=str(path),
            at=0,
            what=f"the checkpoint vouches for records of {ahead:,} ms after the last one in the log",
            cost="records were lost; and after a crash a start may trust more of the queues than it should",
            cure=f"{REBUILD}, or start and stop a broker on it",
        )


def _table_faults(view: StoreView) -> Iterator[Fault]:
    for name, kind in _TABLES.items():
        try:
            table = view.table(name, kind)
        except CorruptFile as error:
            yield Fault(
                kind="table",
                path=error.path,
                at=0,
                what=str(error),
                cost="a broker does not start on it",
                cure="restore it, or remove it to start with an empty table",
            )
            continue
        if isinstance(table, ConsumerOffsets):
            yield from _offset_faults(view, table)


def _offset_faults(view: StoreView, table: ConsumerOffsets) -> Iterator[Fault]:
    """Groups that stand behind the end of a queue."""
    for key, queues in sorted(table.offset_table.items()):
        topic, _, group = key.partition("@")
        for queue_id, queue_offset in sorted(queues.items()):
            queue = view.queues.table.get((topic, queue_id))
            end = queue.next_offset if queue is not None else 0
            if queue_offset > end and not view.may_lag:
                yield Fault(
                    kind="offset-ahead",
                    path=str(view.root / "config" / "consumerOffset.json"),
                    at=queue_offset,
                    what=f"group {group} is at queue offset {queue_offset:,} of {topic}, queue {queue_id}, and that "
                    f"ends at {end:,}",
                    cost="messages were lost; the group goes on at the queue's end",
                    cure=f"`tern group reset {group} {topic}` moves it, if it should read some again",
                )
