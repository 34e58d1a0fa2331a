"""Replays the log into what is derived from it: recovery's hot loop (C5, C8).

Every record is checked: its lengths, its own log offset, the CRC of its body. Then queues and index take it in, unless
they have it. The ordinary record (version 1, IPv4 hosts, nothing special about its topic) takes a short way here: a few
fields at fixed places, and no object is made of it. Everything else goes the long way round, ``unpack_record`` and
``Dispatcher.refold``; so does every record that seems damaged, and what is said there counts. Both ways leave the same.

The CRC covers the body only. A power cut that takes the sector with the end of a record leaves a record of right
lengths whose properties or topic are zeros from there on. Such a record is torn as well: *sectors* of 512 bytes are
written whole or not at all, so where one begins inside topic or properties it is looked at.

The log is read in pieces of a MiB, as ``bytes``: slices of those cost half of what slices of a mapping do.
"""

from __future__ import annotations

import struct
from collections.abc import Callable
from typing import Final
from zlib import crc32

from ternmq.errors import CorruptRecord
from ternmq.message import Property
from ternmq.names import SCHEDULE_TOPIC
from ternmq.store.commitlog import BLANK_BYTES, CommitLog
from ternmq.store.deleted import DeletedTopics
from ternmq.store.dispatch import TAGS_MAX, Dispatcher
from ternmq.store.index import WAITING_MAX, Index
from ternmq.store.queue import ConsumeQueue
from ternmq.store.queues import ConsumeQueues
from ternmq.wire.ids import java_hash
from ternmq.wire.properties import find
from ternmq.wire.record import (
    CRC_MASK,
    FIXED_V4_BYTES,
    MAGIC_BLANK,
    MAGIC_V1,
    RECORD_BYTES_MIN,
    TOPIC_V1_BYTES_MAX,
    Record,
    Sysflag,
    peek_head,
    unpack_record,
)

#: Told how many bytes of how many are done, now and then, on the thread that opens the store.
Progress = Callable[[int, int], object]

SECTOR_BYTES: Final = 512
_PIECE_BYTES: Final = 1 << 20

#: size magic crc queue_id (flag) queue_offset log_offset sysflag (born) store_time_ms (store host, times, half)
#: body_bytes: the fields of ``wire.record`` that matter here.
_FIELDS: Final = struct.Struct(">iiii4xqqi16xq20xi")
assert _FIELDS.size == FIXED_V4_BYTES
_unpack_fields: Final = _FIELDS.unpack_from
#: Any of these, and a record takes the long way: other lengths, or no queue entry.
_SPECIAL: Final = Sysflag.BORN_V6 | Sysflag.STORE_V6 | Sysflag.TRANSACTION_MASK

_TAGS: Final = f"\x02{Property.TAGS}\x01".encode()
_TAGS_FIRST: Final = _TAGS[1:]
_TAGS_BYTES: Final = len(_TAGS)


class Replay:
    """Goes through the log from ``position`` on. Afterwards ``position`` is its end, and ``trouble`` says why."""

    def __init__(
        self,
        commit_log: CommitLog,
        queues: ConsumeQueues,
        index: Index | None,
        deleted: DeletedTopics,
        dispatcher: Dispatcher,
        *,
        position: int,
        check_crc: bool,
    ) -> None:
        self._log = commit_log
        self._queues = queues
        self._index = index
        self._deleted = deleted
        self._dispatcher = dispatcher
        self._check_crc = check_crc
        #: Length and topic as a record has them, and queue id → queue and topic; None: records take the long way.
        self._known: dict[tuple[bytes, int], tuple[ConsumeQueue, str] | None] = {}
        self._tags_codes: dict[bytes, int] = {}
        self.position = position
        self.count = 0
        self.store_time_ms = 0
        #: Empty where the log simply goes no further.
        self.trouble = ""

    def run(self, on_progress: Progress | None = None) -> None:
        begin, end = self.position, self._log.written
        length_bytes = _PIECE_BYTES
        while data := self._log.read(self.position, length_bytes):
            length_bytes = self._take_in(data)
            if not length_bytes:
                break
            if on_progress is not None:
                on_progress(self.position - begin, end - begin)
        if on_progress is not None:
            on_progress(end - begin, end - begin)

    def _take_in(self, data: bytes) -> int:
        """Take in the records of a piece; returns how many bytes the next one should have, 0 if the log ends here."""
        base, end = self.position % self._log.segment_bytes, len(data)
        is_last = base + end == self._log.segment_bytes
        get_known, get_code, check_crc = self._known.get, self._tags_codes.get, self._check_crc
        rfind, find_byte = data.rfind, data.find
        index = self._index
        waiting, taken = (index.waiting, index.taken) if index is not None else ([], 1 << 63)
        store_time_ms = self.store_time_ms
        at, count, advance, wanted_bytes = 0, 0, 1, _PIECE_BYTES
        while at + RECORD_BYTES_MIN <= end:
            size, magic, crc, queue_id, queue_offset, log_offset, sysflag, stored_ms, body_bytes = _unpack_fields(
                data, at
            )
            record_end = at + size
            topic_at = at + FIXED_V4_BYTES + body_bytes
            if not (
                magic == MAGIC_V1
                and log_offset == self.position + at
                and not sysflag & _SPECIAL
                and body_bytes >= 0
                and topic_at + 3 <= record_end <= end
                and (topic_bytes := data[topic_at]) <= TOPIC_V1_BYTES_MAX
                and (properties_at := topic_at + topic_bytes + 3) <= record_end
                and properties_at + (data[properties_at - 2] << 8 | data[properties_at - 1]) == record_end
                and (not check_crc or crc32(data[topic_at - body_bytes : topic_at]) & CRC_MASK == crc or not body_bytes)
                and find_byte(0, properties_at, record_end) < 0
                and (known := get_known((data[topic_at : properties_at - 2], queue_id))) is not None
            ):
                if record_end > end and not is_last:
                    # The next piece begins with this record, and is long enough for it.
                    wanted_bytes = max(size, _PIECE_BYTES)
                    break
                self.store_time_ms = store_time_ms
                advance = self._long_way(data, at, base + at)
                store_time_ms = self.store_time_ms
                if not advance:
                    break
                at += advance
                continue
            queue, topic = known
            if log_offset >= queue.log_end:
                if queue_offset != queue.next_offset:
                    at += self._long_way(data, at, base + at)
                    store_time_ms = stored_ms
                    continue
                tags_at = rfind(_TAGS, properties_at, record_end) + _TAGS_BYTES
                if tags_at < _TAGS_BYTES and data.startswith(_TAGS_FIRST, properties_at):
                    tags_at = properties_at + _TAGS_BYTES - 1
                tags_code = 0
                if tags_at >= _TAGS_BYTES:
                    tags_end = find_byte(2, tags_at, record_end)
                    tags = data[tags_at : tags_end if tags_end >= 0 else record_end]
                    code = get_code(tags)
                    tags_code = code if code is not None else self._learn_tags(tags, data[properties_at:record_end])
                queue.append(log_offset, size, tags_code)
            if log_offset > taken:
                waiting.append((topic, str(data[properties_at:record_end], "utf-8", "replace"), log_offset, stored_ms))
                if len(waiting) >= WAITING_MAX and index is not None:
                    index.overflow()
            store_time_ms = stored_ms
            count += 1
            at = record_end
        self.count += count
        self.store_time_ms = store_time_ms
        while is_last and advance and at < end:
            advance = self._long_way(data, at, base + at)
            at += advance
        self.position += at
        return wanted_bytes if advance else 0

    def _long_way(self, data: bytes, at: int, in_segment: int) -> int:
        """Take in what stands at ``at`` in a piece, and tell its size; 0 if the log ends there."""
        rest = self._log.segment_bytes - in_segment
        if rest < BLANK_BYTES:
            self.trouble = "no blank at the end of the segment"
            return 0
        size, magic = peek_head(data, at)
        if magic == MAGIC_BLANK:
            return rest
        if magic == 0 and size == 0:
            return 0
        log_offset = self.position + at
        try:
            record = unpack_record(data, at, check_crc=self._check_crc)
        except CorruptRecord as error:
            # Its own words tell the place within this piece.
            self.trouble = str(error).replace(f" at {at}", f" at log offset {log_offset}")
            return 0
        if record.log_offset != log_offset:
            self.trouble = f"a record of log offset {record.log_offset} stands at {log_offset}"
            return 0
        if "\0" in record.topic + record.properties and is_torn(data[at : at + size], record, in_segment):
            self.trouble = f"the end of the record at log offset {log_offset} never reached the disk"
            return 0
        self._dispatcher.refold(record)
        self._learn(record)
        self.store_time_ms = record.store_time_ms
        self.count += 1
        return size

    def _learn(self, record: Record) -> None:
        """Let further records of this queue take the short way, if nothing is special about it."""
        queue = self._queues.get(record.topic, record.queue_id)
        if (
            queue is not None
            and queue.topic_part
            and queue.ext is None
            and queue.topic != SCHEDULE_TOPIC
            and queue.topic not in self._deleted
            and not self._queues.has_light
            and not self._dispatcher.deriveds
        ):
            self._known[queue.topic_part, queue.queue_id] = (queue, queue.topic)

    def _learn_tags(self, tags: bytes, properties: bytes) -> int:
        text = find(str(properties, "utf-8", "replace"), Property.TAGS)
        code = java_hash(text) if text else 0
        if tags:
            if len(self._tags_codes) >= TAGS_MAX:
                self._tags_codes.clear()
            self._tags_codes[tags] = code
        return code


def is_torn(data: bytes, record: Record, in_segment: int) -> bool:
    """Whether a sector that begins behind a record's body is empty, up to its end or the record's.

    Only one with a zero in its topic or properties can be; ``data`` are its bytes.
    """
    v6_hosts = bool(record.sysflag & Sysflag.BORN_V6) + bool(record.sysflag & Sysflag.STORE_V6)
    behind_body = FIXED_V4_BYTES + v6_hosts * 12 + len(record.body)
    first = behind_body + -(in_segment + behind_body) % SECTOR_BYTES
    return any(not any(data[begin : begin + SECTOR_BYTES]) for begin in range(first, len(data), SECTOR_BYTES))
