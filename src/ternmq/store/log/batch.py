"""Many messages of one sender for one queue, appended together (E6).

All are stored, next to each other in one segment, or none. What is the same for all of them (hosts, times, topic) is
packed once; the records are joined and copied to the page in one piece; queue entries and index take them in as a
group. So a message of a batch costs half of what ``MessageStore.put`` does, and leaves the same bytes.

A batch of ordinary messages can stay as it was sent (``put_sent``): a compiled kernel makes records and entries of it.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Sequence
from typing import Final, NamedTuple, TypeAlias
from zlib import crc32

from ternmq.errors import RecordRefused
from ternmq.kernels import HAS_NATIVE, native
from ternmq.store.derived.queue import ConsumeQueue
from ternmq.store.log.protocol import Log
from ternmq.store.log.run import SealedRun, may_wait
from ternmq.store.log.writer import RecordLimits
from ternmq.wire.record import CRC_MASK, Sysflag, shared_fields, topic_part

#: Flag, body and properties of a message, as a batch on the wire has them.
BatchPart: TypeAlias = tuple[int, bytes, bytes]

#: What a kernel makes of a batch: log offsets, what they add to the queue (``RunPart``), and index entries.
ExpandedBatch: TypeAlias = tuple[list[int], tuple[bytes, int, int, list[tuple[int, int]]], bytes]

_NO_TRANSACTION: Final = ~Sysflag.TRANSACTION_MASK
_pack_short: Final = struct.Struct(">h").pack


class PlacedBatch(NamedTuple):
    """Where the records of a batch lie; ``queue_offset`` is the first one's, the others follow."""

    log_offsets: list[int]
    #: Log offset behind the last record: what to wait for in ``flushed``.
    end_offset: int
    queue_offset: int
    store_time_ms: int


class BatchWriter:
    """Belongs to the store's thread, like all that it writes to."""

    def __init__(
        self,
        log: Log,
        dispatch: Callable[[ConsumeQueue, list[str], str, list[int], list[int], int, int], None],
        dispatch_run: Callable[[SealedRun], None],
        *,
        store_host: bytes,
        now_ms: Callable[[], int],
        queue_of: Callable[[str, int], ConsumeQueue],
        reserve: Callable[[int, int], None],
        limits: RecordLimits,
        wake: Callable[[], None],
    ) -> None:
        """``wake`` is called after each batch. ``dispatch_run`` takes in what a kernel made of one."""
        self._log = log
        self._reserve = reserve
        self._dispatch = dispatch
        self._dispatch_run = dispatch_run
        self._store_host = store_host
        self._now_ms = now_ms
        self._queue_of = queue_of
        self._limits = limits
        self._wake = wake

    def put(
        self,
        topic: str,
        queue_id: int,
        parcels: Sequence[BatchPart],
        *,
        born_time_ms: int,
        born_host: bytes,
        sysflag: int = 0,
        more_properties: bytes = b"",
    ) -> PlacedBatch:
        """Append one record for each parcel, ``more_properties`` behind its own; there is at least one.

        Raises ``RecordRefused``, ``DiskFull`` or ``NotRunning``; then nothing was stored.
        """
        queue = self._queue_of(topic, queue_id)
        store_time_ms = self._now_ms()
        sysflag &= _NO_TRANSACTION
        shared, head = shared_fields(sysflag, born_time_ms, born_host, store_time_ms, self._store_host)
        topic_field, magic = topic_part(queue.topic_bytes)
        more_bytes = len(more_properties)
        fixed_bytes = head.size + len(topic_field) + 2 + more_bytes
        sizes = [fixed_bytes + len(body) + len(properties) for _, body, properties in parcels]
        total = sum(sizes)
        if total + self._limits.lead * len(parcels) > self._limits.unchecked_bytes_max:
            for (_, body, properties), size in zip(parcels, sizes, strict=True):
                self._limits.check_sizes(len(body), len(properties) + more_bytes, size)
            if total + self._limits.lead * (len(parcels) - 1) > self._limits.record_bytes_max:
                raise RecordRefused(
                    f"the batch takes {total} bytes, at most {self._limits.record_bytes_max} fit together; send fewer "
                    "at once"
                )

        window, lead = self._log.window, self._log.lead
        taken = total + lead * (len(parcels) - 1)
        if window.at + taken > window.limit:
            self._reserve(total, len(parcels))
        log_offset = window.at
        at = log_offset - window.base
        first = queue_offset = queue.assigned
        # Topic, and the length of the properties: the same for most messages of a batch.
        middles: dict[int, bytes] = {}
        parts: list[bytes] = []
        log_offsets: list[int] = []
        pack, space = head.pack, bytes(lead)
        for (flag, body, properties), size in zip(parcels, sizes, strict=True):
            middle = middles.get(len(properties))
            if middle is None:
                middle = topic_field + _pack_short(len(properties) + more_bytes)
                middles[len(properties)] = middle
            crc = crc32(body) & CRC_MASK
            parts += (
                space,
                pack(size, magic, crc, queue_id, flag, queue_offset, log_offset, shared, len(body)),
                body,
                middle,
                properties,
                more_properties,
            )
            log_offsets.append(log_offset)
            queue_offset += 1
            log_offset += size + lead
        end_offset = log_offset - lead
        window.page[at - lead : at + taken] = b"".join(parts)
        self._log.seal(end_offset, store_time_ms)
        texts = [str(properties, "utf-8", "replace") for _, _, properties in parcels]
        more = str(more_properties, "utf-8", "replace")
        self._dispatch(queue, texts, more, sizes, log_offsets, sysflag, store_time_ms)
        self._wake()
        return PlacedBatch(log_offsets, end_offset, first, store_time_ms)

    def put_sent(
        self,
        topic: str,
        queue_id: int,
        data: bytes,
        *,
        born_time_ms: int,
        born_host: bytes,
        sysflag: int = 0,
        more_properties: bytes = b"",
        count_max: int | None = None,
    ) -> PlacedBatch | None:
        """``put`` for a batch as it was sent (``wire.batch``), whose messages have nothing special in their properties.

        None if ``put`` must decide, and nothing was stored: no kernel, a log that is shut, other queues than plain
        ones, messages without a unique key, with so many keys that they should not wait, or more than ``count_max``.
        Raises as ``put``.
        """
        if not HAS_NATIVE:
            return None
        queue, window, limits = self._queue_of(topic, queue_id), self._log.window, self._limits
        if queue.needs_facts or queue.has_due_times or window.limit < window.at:
            return None
        store_time_ms = self._now_ms()
        shared, _ = shared_fields(sysflag & _NO_TRANSACTION, born_time_ms, born_host, store_time_ms, self._store_host)
        topic_field, magic = topic_part(queue.topic_bytes)

        def expand() -> ExpandedBatch | int | None:
            return native.expand_batch(
                window.page,
                window.at - window.base,
                window.limit - window.base,
                data,
                log_offset=window.at,
                lead=self._log.lead,
                queue_id=queue_id,
                queue_offset=queue.assigned,
                store_time_ms=store_time_ms,
                magic=magic,
                shared=shared,
                topic_field=topic_field,
                topic=queue.topic_bytes,
                more_properties=more_properties,
                body_bytes_max=limits.body_bytes_max,
                record_bytes_max=limits.record_bytes_max,
            )

        made = expand()
        if isinstance(made, int):
            # Large batches would otherwise take the long way each time that a window is used up.
            self._reserve(made, 1)
            made = expand()
        if made is None or isinstance(made, int):
            return None
        queue_offset = queue.assigned
        log_offsets, added, keys = made
        log_end = added[1]
        if count_max is not None and len(log_offsets) > count_max:
            return None
        if not may_wait(self._log, keys, log_end - log_offsets[0]):
            return None
        self._log.seal(log_end, store_time_ms)
        self._dispatch_run(SealedRun([(queue, *added)], keys, log_offsets[-1], log_end, store_time_ms))
        self._wake()
        return PlacedBatch(log_offsets, log_end, queue_offset, store_time_ms)
