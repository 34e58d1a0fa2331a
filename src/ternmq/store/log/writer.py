"""One message, appended and dispatched (C1, C5): the hottest function of a store, and the limits that it keeps."""

from __future__ import annotations

import struct
from collections.abc import Callable, Sequence
from itertools import islice
from typing import Final
from zlib import crc32

from ternmq.errors import RecordRefused, TernError
from ternmq.store.config import RECORD_EXTRA_BYTES, FlushDiskType, StoreConfig
from ternmq.store.derived.fact import Fresh
from ternmq.store.derived.queue import ConsumeQueue
from ternmq.store.derived.queues import ConsumeQueues, batch_refused
from ternmq.store.log.draft import Draft, Placed
from ternmq.store.log.protocol import Log
from ternmq.types import Buffer
from ternmq.wire.record import (
    BLANK_BYTES,
    CRC_MASK,
    FIXED_V4_BYTES,
    HOST_V4_BYTES,
    MAGIC_V1,
    NO_HOST_FLAGS,
    PROPERTIES_BYTES_MAX,
    RECORD_BYTES_MIN,
    TOPIC_V1_BYTES_MAX,
    Sysflag,
    pack_fixed_v4,
    pack_fixed_v4_into,
    pack_record,
)

#: Records up to this size are joined before they are copied.
_PLAIN_BYTES_MAX: Final = 4096
#: Makes a ``Placed`` without the call of its constructor, which is written in Python.
_new_tuple: Final = tuple.__new__
_pack_short: Final = struct.Struct(">h").pack
_NOT_QUEUED: Final = Sysflag.PREPARED


class RecordLimits:
    """What a record may have."""

    __slots__ = ("_has_long_topics", "body_bytes_max", "lead", "record_bytes_max", "unchecked_bytes_max")

    def __init__(self, config: StoreConfig, *, lead: int) -> None:
        #: Bytes that a log needs in front of each record.
        self.lead = lead
        self.body_bytes_max = config.max_message_size
        self._has_long_topics = config.auto_message_version_on_topic_len
        self.record_bytes_max = min(
            config.max_message_size + RECORD_EXTRA_BYTES, config.mapped_file_size_commit_log - BLANK_BYTES - lead
        )
        #: A record of this size breaks no limit, whatever it is made of.
        self.unchecked_bytes_max = min(PROPERTIES_BYTES_MAX, self.body_bytes_max, self.record_bytes_max)

    def check_topic(self, topic: str) -> None:
        """Raise ``RecordRefused`` for a topic that no record of this store can name."""
        topic_bytes = len(topic.encode("utf-8", "replace"))
        if topic_bytes > TOPIC_V1_BYTES_MAX and not self._has_long_topics:
            raise RecordRefused(
                f"the topic {topic[:40]!r}… has {topic_bytes} bytes, at most {TOPIC_V1_BYTES_MAX} are stored; use a "
                "shorter name, or set autoMessageVersionOnTopicLen=true if no RocketMQ 4 has to read this log"
            )

    def check_sizes(self, body_bytes: int, properties_bytes: int, size: int) -> None:
        """Raise ``RecordRefused`` for what a record may not have."""
        if body_bytes > self.body_bytes_max:
            raise RecordRefused(
                f"the body has {body_bytes} bytes, at most {self.body_bytes_max} are stored; send less, compress it, "
                "or raise maxMessageSize"
            )
        if properties_bytes > PROPERTIES_BYTES_MAX:
            raise RecordRefused(
                f"the properties have {properties_bytes} bytes, at most {PROPERTIES_BYTES_MAX} are stored; move some "
                "of them to the body"
            )
        if size > self.record_bytes_max:
            raise RecordRefused(
                f"the message takes {size} bytes, at most {self.record_bytes_max} are stored; send less, or raise "
                "maxMessageSize and mappedFileSizeCommitLog"
            )


class RecordWriter:
    """Belongs to the store's thread, like all that it writes to."""

    def __init__(
        self,
        config: StoreConfig,
        log: Log,
        queues: ConsumeQueues,
        dispatch: Callable[[ConsumeQueue, str, int, int, int, int, int, int], None],
        dispatch_all: Callable[[Sequence[Fresh]], None],
        *,
        store_host: bytes,
        now_ms: Callable[[], int],
        before_reserve: Callable[[], None],
        wake: Callable[[], None],
        is_batch: Callable[[str], bool],
    ) -> None:
        """``dispatch`` takes in what was sealed: ``Dispatcher.fresh``, or ``Pending.fresh`` if the log confirms later;
        ``dispatch_all`` likewise.
        ``before_reserve`` is called when the log needs space, now and then; it may raise, and nothing is stored.
        ``wake`` is called under SYNC_FLUSH after each record. ``is_batch`` tells topics that are to have batch queues
        (RocketMQ 5's ``queue.type=BatchCQ``), which are refused.
        """
        self.limits = RecordLimits(config, lead=log.lead)
        self._unchecked_bytes_max = self.limits.unchecked_bytes_max
        self._window = log.window
        self._seal = log.seal
        self._reserve = log.reserve
        self._before_reserve = before_reserve
        self._refusal: TernError | None = None
        self._queues = queues
        self._table = queues.table
        self._dispatch = dispatch
        self._dispatch_all = dispatch_all
        self._store_host = store_host
        self._now_ms = now_ms
        self._is_sync = config.flush_disk_type is FlushDiskType.SYNC_FLUSH
        self._wake = wake
        self._is_batch = is_batch
        #: The part of a record that is the same for all, but for the born host.
        self._fixed_bytes = RECORD_BYTES_MIN - 2 * HOST_V4_BYTES + len(store_host)
        #: Records up to this size can take the short way, if their born host is IPv4, too.
        self._plain_bytes_max = _PLAIN_BYTES_MAX if len(store_host) == HOST_V4_BYTES else 0

    def queue_of(self, topic: str, queue_id: int) -> ConsumeQueue:
        """The queue that a record goes to, new if there was none. Raises ``RecordRefused`` if no record can name it."""
        self.limits.check_topic(topic)
        if (topic, queue_id) not in self._table and self._is_batch(topic):
            raise batch_refused(topic)
        return self._queues.make(topic, queue_id)

    def reserve(self, record_bytes: int, count: int = 1) -> None:
        """Let the log's window have room; see ``Log.reserve``."""
        if self._refusal is not None:
            raise self._refusal.with_traceback(None)
        self._before_reserve()
        self._reserve(record_bytes, count)

    def refuse(self, reason: TernError | None) -> None:
        """Refuse records with ``reason``, until called with None. Without room in the window, each put asks."""
        self._refusal = reason
        self._window.shut()

    def put(self, draft: Draft) -> Placed:
        """Append one record, and dispatch it if the log confirms it at once.

        Raises ``RecordRefused``, ``DiskFull`` or ``NotRunning``; then nothing was stored.
        """
        topic, queue_id, body, text, sysflag = draft.topic, draft.queue_id, draft.body, draft.properties, draft.sysflag
        queue = self._table.get((topic, queue_id)) or self.queue_of(topic, queue_id)
        try:
            properties = text.encode()
        except UnicodeEncodeError:
            properties, text = _encode_as_java(text)
        born_host = draft.born_host
        host_bytes, body_bytes, properties_bytes = len(born_host), len(body), len(properties)
        size = self._fixed_bytes + host_bytes + body_bytes + queue.topic_record_bytes + properties_bytes
        if size > self._unchecked_bytes_max:
            self.limits.check_sizes(body_bytes, properties_bytes, size)

        window = self._window
        log_offset = window.at
        end_offset = log_offset + size
        if end_offset > window.limit:
            self.reserve(size)
            log_offset = window.at
            end_offset = log_offset + size
        at = log_offset - window.base
        queue_offset = 0 if sysflag & _NOT_QUEUED else queue.next_offset + queue.pending
        store_time_ms = self._now_ms()
        prepared_offset = draft.prepared_transaction_offset
        try:
            if size <= self._plain_bytes_max and host_bytes == HOST_V4_BYTES and queue.topic_part:
                # What pack_record does for such a record, at half the price. Small parts are joined first: one more
                # copy of them is cheaper than five stores to the page.
                pack_fixed_v4_into(
                    window.page,
                    at,
                    size,
                    MAGIC_V1,
                    crc32(body) & CRC_MASK,
                    queue_id,
                    draft.flag,
                    queue_offset,
                    log_offset,
                    sysflag & NO_HOST_FLAGS,
                    draft.born_time_ms,
                    born_host,
                    store_time_ms,
                    self._store_host,
                    draft.reconsume_times,
                    prepared_offset,
                    body_bytes,
                )
                window.page[at + FIXED_V4_BYTES : at + size] = b"".join(
                    (body, queue.topic_part, _pack_short(properties_bytes), properties)
                )
            else:
                if not queue.topic_part:
                    self.queue_of(topic, queue_id)  # made by others, or before the setting was changed
                pack_record(
                    window.page,
                    at,
                    size=size,
                    queue_id=queue_id,
                    flag=draft.flag,
                    queue_offset=queue_offset,
                    log_offset=log_offset,
                    sysflag=sysflag,
                    born_time_ms=draft.born_time_ms,
                    born_host=born_host,
                    store_time_ms=store_time_ms,
                    store_host=self._store_host,
                    reconsume_times=draft.reconsume_times,
                    prepared_transaction_offset=prepared_offset,
                    body=body,
                    topic=queue.topic_bytes,
                    properties=properties,
                )
        except struct.error as error:
            raise RecordRefused(
                f"a field of the message does not fit into a record ({error}); send a smaller number"
            ) from None
        self._seal(end_offset, store_time_ms)
        self._dispatch(queue, text, sysflag, log_offset, size, queue_offset, store_time_ms, prepared_offset)
        if self._is_sync:
            self._wake()
        return _new_tuple(Placed, (log_offset, end_offset, queue_offset, store_time_ms))

    def put_all(self, drafts: Sequence[Draft]) -> int:
        """Append records of any queues, in order, and dispatch them: ``put`` for many, at less cost for each.

        Returns how many were stored: all, or those before the first that could not be. Raises what ``put`` would raise
        for the first one; then nothing was stored.
        """
        done, count = 0, len(drafts)
        while done < count:
            try:
                together = self._put_together(drafts, done)
                if not together:
                    self.put(drafts[done])
                    together = 1
            except TernError:
                if not done:
                    raise
                return done
            done += together
        return done

    def _put_together(self, drafts: Sequence[Draft], first: int) -> int:
        """Append the small records that come first, as many as the window has room for; how many."""
        table, store_host, lead, window = self._table, self._store_host, self.limits.lead, self._window
        fixed_bytes = self._fixed_bytes + HOST_V4_BYTES
        small_max = min(self._plain_bytes_max, self._unchecked_bytes_max)
        begin = log_offset = window.at
        limit, store_time_ms, space = window.limit, self._now_ms(), bytes(lead)
        queue_offsets: dict[ConsumeQueue, int] = {}
        parts: list[Buffer] = []
        placed: list[Fresh] = []
        for draft in islice(drafts, first, None):
            body, text, born_host, queue_id = draft.body, draft.properties, draft.born_host, draft.queue_id
            sysflag, prepared_offset = draft.sysflag, draft.prepared_transaction_offset
            queue = table.get((draft.topic, queue_id))
            if queue is None or not queue.topic_part or len(born_host) != HOST_V4_BYTES:
                break
            body_bytes, queue_offset = len(body), 0
            if not sysflag & _NOT_QUEUED:
                queue_offset = queue_offsets.get(queue, -1)
                if queue_offset < 0:
                    queue_offset = queue.next_offset + queue.pending
                queue_offsets[queue] = queue_offset + 1
            try:
                properties = text.encode()
                size = fixed_bytes + body_bytes + queue.topic_record_bytes + len(properties)
                if size > small_max or log_offset + size > limit:
                    break
                head = pack_fixed_v4(
                    size,
                    MAGIC_V1,
                    crc32(body) & CRC_MASK,
                    queue_id,
                    draft.flag,
                    queue_offset,
                    log_offset,
                    sysflag & NO_HOST_FLAGS,
                    draft.born_time_ms,
                    born_host,
                    store_time_ms,
                    store_host,
                    draft.reconsume_times,
                    prepared_offset,
                    body_bytes,
                )
            except (UnicodeEncodeError, struct.error):
                # ``put`` knows what to do with it.
                break
            parts += (space, head, body, queue.topic_part, _pack_short(len(properties)), properties)
            placed.append((queue, text, sysflag, log_offset, size, queue_offset, store_time_ms, prepared_offset))
            log_offset += size + lead
        if not placed:
            return 0
        end_offset = log_offset - lead
        window.page[begin - lead - window.base : end_offset - window.base] = b"".join(parts)
        self._seal(end_offset, store_time_ms)
        self._dispatch_all(placed)
        if self._is_sync:
            self._wake()
        return len(placed)


def _encode_as_java(text: str) -> tuple[bytes, str]:
    """A text in UTF-8, and what it reads as. Half a surrogate pair, which JSON can carry, becomes ``?`` as in Java."""
    data = text.encode("utf-8", "replace")
    return data, data.decode()
