"""Follows the log and folds it into what is derived from it: recovery's hot loop, and a replica's (C5, C8).

Recovery runs it from a trusted place to the log's end. A replica gets bytes of another node, cut anywhere, and folds
them on the loop in short steps (``step``): the follower stops at half a record and goes on when there is more.

Every record is checked: its lengths, its own log offset, the CRC of its body. Then queues and index take it in, unless
they have it. The ordinary record (version 1, IPv4 hosts, nothing special about its topic) takes a short way here: a few
fields at fixed places, and no object is made of it. Everything else goes the long way round, ``unpack_record`` and
``Dispatcher.fold``; so does every record that seems damaged, and what is said there counts. Both ways leave the same.

The CRC covers the body only. A power cut that takes the sector with the end of a record leaves a record of right
lengths whose properties or topic are zeros from there on. Such a record is torn as well: *sectors* of 512 bytes are
written whole or not at all, so where one begins inside topic or properties it is looked at.

Where there are compiled kernels, one of them walks over the ordinary records of a plain log or a Raft log, and this
loop gets what the kernel leaves. Records that further parts need (``Derived``) are left to it.

The log is read in pieces of a MiB, or 64 KiB in steps, as ``bytes``: slices of those cost half of what slices of a
mapping do.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final
from zlib import crc32

from ternmq.errors import CorruptRecord
from ternmq.kernels import HAS_NATIVE, native
from ternmq.store.derived.dispatch import Dispatcher
from ternmq.store.derived.fact import Fact
from ternmq.store.derived.index import WAITING_MAX, Index
from ternmq.store.derived.queue import ConsumeQueue
from ternmq.store.derived.queues import ConsumeQueues
from ternmq.store.durable.deleted import DeletedTopics
from ternmq.store.log.protocol import Log, LogPiece
from ternmq.wire.record import (
    BLANK_BYTES,
    CRC_MASK,
    FIXED_V4_BYTES,
    MAGIC_V1,
    MAGIC_V2,
    RECORD_BYTES_MIN,
    TOPIC_V1_BYTES_MAX,
    Record,
    Sysflag,
    behind_body,
    peek_head,
    unpack_checked_v4,
    unpack_record,
)
from ternmq.wire.tags import TagsCodes

#: Told how many bytes of how many are done, now and then, on the thread that opens the store.
OnProgress = Callable[[int, int], object]

SECTOR_BYTES: Final = 512
_PIECE_BYTES: Final = 1 << 20
#: Some 200 records, which take half a millisecond.
_STEP_BYTES: Final = 64 << 10

#: Larger than any log offset.
_NEVER: Final = (1 << 63) - 1
#: Any of these, and a record takes the long way: other lengths, or no queue entry. A record that closes another
#: takes it, too.
_SPECIAL: Final = Sysflag.BORN_V6 | Sysflag.STORE_V6 | Sysflag.TRANSACTION_MASK


class Follower:
    """Goes through the log from ``position`` on. At the end ``position`` is the log's end, and ``trouble`` says why."""

    def __init__(
        self,
        commit_log: Log,
        queues: ConsumeQueues,
        index: Index | None,
        deleted: DeletedTopics,
        dispatcher: Dispatcher,
        *,
        position: int,
        check_crc: bool,
        tells_arrivals: bool = False,
    ) -> None:
        self._log = commit_log
        self._queues = queues
        self._index = index
        self._deleted = deleted
        self._dispatcher = dispatcher
        self._check_crc = check_crc
        #: Length and topic as a record has them, and queue id → queue and topic; None: records take the long way.
        self._known: dict[tuple[bytes, int], tuple[ConsumeQueue, str] | None] = {}
        self._tags_codes = TagsCodes()
        self._piece_bytes = _PIECE_BYTES
        self._unfolded: list[Fact] | None = None
        #: Queues that got entries since consumers were last told, with the tags codes of these.
        self._arrivals: dict[tuple[ConsumeQueue, int], None] | None = {} if tells_arrivals else None
        self.position = position
        self.count = 0
        self.store_time_ms = 0
        #: Empty where the log simply goes no further.
        self.trouble = ""

    def run(self, on_progress: OnProgress | None = None, *, until: int | None = None) -> None:
        """Go on up to ``until``, a position, or to the log's end."""
        begin, end = self.position, self._log.end if until is None else until
        self._piece_bytes = length_bytes = _PIECE_BYTES
        while until is None or self.position < until:
            length_bytes = self._go_on(until, length_bytes)
            if not length_bytes:
                break
            if on_progress is not None:
                on_progress(self.position - begin, end - begin)
        if on_progress is not None:
            on_progress(end - begin, end - begin)

    def step(self, until: int, is_over: Callable[[], bool]) -> bool:
        """Go on up to ``until``, or until ``is_over`` says that this has taken enough time.

        True if nothing more can be done before there is more of the log: at most half a record is left.
        """
        self._piece_bytes = length_bytes = _STEP_BYTES
        try:
            while self.position < until:
                length_bytes = self._go_on(until, length_bytes)
                if not length_bytes:
                    return True
                if is_over():
                    return self.position >= until
            return True
        finally:
            self._tell_arrivals()

    def _go_on(self, until: int | None, length_bytes: int) -> int:
        """Take in one piece; returns how many bytes the next one should have, 0 if there is none."""
        position, is_cut = self.position, False
        if until is not None and until - position < length_bytes:
            length_bytes, is_cut = until - position, True
        piece = self._log.read(position, length_bytes)
        if piece is None:
            return 0
        length_bytes = self._take_in(piece)
        # Of a record that reaches over ``until`` the rest is not there, however often it is read.
        return 0 if is_cut and self.position == position else length_bytes

    def _tell_arrivals(self) -> None:
        arrivals, tell = self._arrivals, self._dispatcher.on_arrival
        if not arrivals:
            return
        self._arrivals = {}
        if tell is not None:
            for queue, tags_code in arrivals:
                tell(queue.topic, queue.queue_id, queue.next_offset, tags_code, None)

    def look_ahead(self) -> tuple[list[Fact], int]:
        """What whole records follow up to the log's end, which are not folded, and where the last of them ends."""
        position, store_time_ms = self.position, self.store_time_ms
        facts, end = self.run_unfolded(), self.position
        self.position, self.store_time_ms, self.trouble = position, store_time_ms, ""
        return facts, end

    def forget_queues(self) -> None:
        """Look at all queues anew: some were removed."""
        self._known.clear()

    def cut(self, position: int) -> None:
        """The log ends at ``position`` now; what was folded lies before it."""
        # A blank of which only the beginning was there leads further.
        self.position = min(self.position, position)

    def run_unfolded(self, on_progress: OnProgress | None = None) -> list[Fact]:
        """Go on to the log's end, fold nothing, and return what would have been."""
        # Without known queues all take the long way.
        self.forget_queues()
        unfolded: list[Fact] = []
        self._unfolded = unfolded
        try:
            # Not beyond: zeros that stand there could complete half a record.
            self.run(on_progress, until=self._log.end)
        finally:
            self._unfolded = None
        return unfolded

    def _take_in(self, piece: LogPiece) -> int:
        """Take in the records of a piece; returns how many bytes the next one should have, 0 if the log ends here."""
        data, begin, lead, is_last = piece.data, piece.begin, piece.form.lead, piece.ends_segment
        end, is_sealed = len(data), self._log.is_sealed
        get_known, get_code, check_crc = self._known.get, self._tags_codes.of_bytes, self._check_crc
        find_byte = data.find
        index = self._index
        waiting, taken = (index.waiting, index.taken) if index is not None else ([], _NEVER)
        store_time_ms = self.store_time_ms
        # Where the next record stands, behind its lead.
        at = lead
        count, advance, wanted_bytes = 0, 1, self._piece_bytes
        arrivals = self._arrivals
        can_scan = HAS_NATIVE and (not lead or piece.form.is_raft) and self._unfolded is None
        while at + RECORD_BYTES_MIN <= end:
            if can_scan:
                at, plain_count, plain_ms = self._scan(piece, at, taken)
                if plain_count:
                    count, store_time_ms = count + plain_count, plain_ms
                    continue
            size, magic, crc, queue_id, queue_offset, log_offset, sysflag, stored_ms, closed, body_bytes = (
                unpack_checked_v4(data, at)
            )
            record_end = at + size
            topic_at = at + FIXED_V4_BYTES + body_bytes
            if not (
                magic == MAGIC_V1
                and log_offset == begin + at
                and not sysflag & _SPECIAL
                and not closed
                and body_bytes >= 0
                and topic_at + 3 <= record_end <= end
                and (topic_bytes := data[topic_at]) <= TOPIC_V1_BYTES_MAX
                and (properties_at := topic_at + topic_bytes + 3) <= record_end
                and properties_at + (data[properties_at - 2] << 8 | data[properties_at - 1]) == record_end
                and (not check_crc or crc32(data[topic_at - body_bytes : topic_at]) & CRC_MASK == crc or not body_bytes)
                and find_byte(0, properties_at, record_end) < 0
                and (known := get_known((data[topic_at : properties_at - 2], queue_id))) is not None
                and (not lead or is_sealed(data[at - lead : at], log_offset, size))
            ):
                if record_end > end and not is_last and magic in (MAGIC_V1, MAGIC_V2):
                    # The next piece begins with this record, and is long enough for it.
                    wanted_bytes = max(lead + size, self._piece_bytes)
                    break
                self.store_time_ms = store_time_ms
                advance = self._long_way(piece, at - lead)
                store_time_ms = self.store_time_ms
                if not advance:
                    break
                at += advance
                continue
            queue, topic = known
            if log_offset >= queue.log_end:
                if queue_offset != queue.next_offset:
                    at += self._long_way(piece, at - lead)
                    store_time_ms = stored_ms
                    continue
                tags_code = get_code(data, properties_at, record_end)
                queue.append(log_offset, size, tags_code)
                if arrivals is not None:
                    arrivals[queue, tags_code] = None
            if log_offset > taken:
                waiting.append((topic, str(data[properties_at:record_end], "utf-8", "replace"), log_offset, stored_ms))
                if len(waiting) >= WAITING_MAX and index is not None:
                    index.overflow()
            store_time_ms = stored_ms
            count += 1
            at = record_end + lead
        at -= lead
        self.count += count
        self.store_time_ms = store_time_ms
        while is_last and advance and at < end:
            advance = self._long_way(piece, at)
            at += advance
        self.position += at
        return wanted_bytes if advance else 0

    def _scan(self, piece: LogPiece, at: int, taken: int) -> tuple[int, int, int]:
        """Let the kernel take in what it can: where it stopped, how many records it took, store time of the last."""
        lead = piece.form.lead
        at, last_at, count, store_time_ms, runs, made, keyed = native.scan(
            piece.data,
            at,
            begin=piece.begin,
            has_headers=piece.form.is_raft,
            before=self._log.entry_before(piece.begin + at - lead) if lead else None,
            check_crc=self._check_crc,
            known=self._known,
            indexed=taken,
        )
        if lead and count:
            self._log.note_checked(piece.data[last_at - lead : last_at])
        arrivals = self._arrivals
        for queue, entries, log_end, tags_codes in runs:
            queue.extend(entries, log_end)
            if arrivals is not None:
                for tags_code in tags_codes:
                    arrivals[queue, tags_code] = None
        if keyed >= 0 and self._index is not None:
            self._index.add_made(made, keyed)
        return at, count, store_time_ms

    def _long_way(self, piece: LogPiece, at: int) -> int:
        """Take in what stands at a position in a piece, and tell how far the next one is; 0 if the log ends there."""
        data, lead = piece.data, piece.form.lead
        rest = piece.segment_bytes - piece.at - at
        if rest < BLANK_BYTES:
            self.trouble = "no blank at the end of the segment"
            return 0
        if piece.form.is_blank(data, at):
            return rest
        size, magic = peek_head(data, at + lead if rest >= lead + BLANK_BYTES else at)
        at += lead
        if magic == 0 and size == 0:
            return 0
        log_offset = piece.begin + at
        try:
            record = unpack_record(data, at, check_crc=self._check_crc)
        except CorruptRecord as error:
            # Its own words tell the place within this piece.
            self.trouble = str(error).replace(f" at {at}", f" at log offset {log_offset}")
            return 0
        if record.log_offset != log_offset:
            self.trouble = f"a record of log offset {record.log_offset} stands at {log_offset}"
            return 0
        if lead and not self._log.is_sealed(data[at - lead : at], log_offset, size):
            self.trouble = f"the bytes in front of the record at log offset {log_offset} do not belong to it"
            return 0
        if "\0" in record.topic + record.properties and is_torn(data[at : at + size], record, piece.at + at):
            self.trouble = f"the end of the record at log offset {log_offset} never reached the disk"
            return 0
        fact = self._dispatcher.fact(record)
        if self._unfolded is not None:
            self._unfolded.append(fact)
        elif self._arrivals is not None:
            self._dispatcher.confirmed(fact, memoryview(data)[at : at + size])
            self._learn(record)
        else:
            self._dispatcher.fold(fact, memoryview(data)[at : at + size])
            self._learn(record)
        self.store_time_ms = record.store_time_ms
        self.count += 1
        return lead + size

    def _learn(self, record: Record) -> None:
        """Let further records of this queue take the short way, if nothing is special about it."""
        queue = self._queues.get(record.topic, record.queue_id)
        if (
            queue is not None
            and queue.topic_part
            and queue.ext is None
            and not queue.needs_facts
            and not queue.has_due_times
            and queue.topic not in self._deleted
            and not self._queues.has_light
        ):
            self._known[queue.topic_part, queue.queue_id] = queue, queue.topic


def is_torn(data: bytes, record: Record, in_segment: int) -> bool:
    """Whether a sector that begins behind a record's body is empty, up to its end or the record's.

    Only one with a zero in its topic or properties can be; ``data`` are its bytes.
    """
    begin = behind_body(record)
    first = begin + -(in_segment + begin) % SECTOR_BYTES
    return any(not any(data[at : at + SECTOR_BYTES]) for at in range(first, len(data), SECTOR_BYTES))
