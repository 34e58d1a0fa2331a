"""Waiting records under their own topics, the quick ways (I2).

A hundred thousand messages may be due in one second, and they are delivered on the loop. So for a record as ``Timer``
writes it, in the usual form (a short topic), its fields are taken straight from its bytes: 2 µs instead of 5. For any
other record there is no quick way, and the long one (``Delivery``) finds out what is the matter.

With compiled kernels many records are written again by one call (``DueRewriter``): 1 µs each, if their hosts are IPv4.
"""

from __future__ import annotations

import struct
from typing import Final, NamedTuple
from zlib import crc32

from ternmq import names
from ternmq.delay.due import own_queue, queue_of
from ternmq.kernels import native
from ternmq.message import Property
from ternmq.store.derived.parts import Closings
from ternmq.store.log.draft import FIRST, Draft
from ternmq.store.log.run import PackedRun, PackingRoom, record_count
from ternmq.types import Buffer
from ternmq.wire.record import (
    CRC_MASK,
    FIXED_V4_BYTES,
    MAGIC_V1,
    PROPERTIES_BYTES_MAX,
    TOPIC_V1_BYTES_MAX,
    Sysflag,
    field_at,
)

#: size magic crc (queue id) flag (queue offset) log offset sysflag born time and host, store time (and host) reconsume
#: times (prepared offset) length of the body; by the flags of its hosts.
_KEPT: Final = {
    0: struct.Struct(">iii4xi8xqiq8sq8xi8xi"),
    Sysflag.BORN_V6: struct.Struct(">iii4xi8xqiq20sq8xi8xi"),
    Sysflag.STORE_V6: struct.Struct(">iii4xi8xqiq8sq20xi8xi"),
    Sysflag.BORN_V6 | Sysflag.STORE_V6: struct.Struct(">iii4xi8xqiq20sq20xi8xi"),
}
_HOST_FLAGS: Final = Sysflag.BORN_V6 | Sysflag.STORE_V6
#: The lowest byte of the sysflag.
_FLAGS_AT: Final = field_at("sysflag") + 3
_NOT_TRANSACTION: Final = ~Sysflag.TRANSACTION_MASK
#: Of properties in the quick way: what is added to them cannot make them too long.
_PROPERTIES_BYTES_MAX: Final = PROPERTIES_BYTES_MAX - 200
_TAKES_BACK: Final = f"{Property.TIMER_DELETE_KEY}\x01"
_ENQUEUED: Final = f"{Property.TIMER_ENQUEUE_MS}\x01"


#: Texts of queues that are known, all their bytes, and the bytes of one.
_OWN_MAX: Final = 16_384
_OWN_TOTAL_BYTES_MAX: Final = 1 << 20
_OWN_BYTES_MAX: Final = 512


class Spans(NamedTuple):
    """Records that wait, in the order of their delivery."""

    source: Buffer
    #: Where they begin in the source, and how long they are.
    places: list[int]
    sizes: list[int]
    #: Where the log has them.
    log_offsets: list[int]


class DueRewriter:
    """Delivers many records by one call of the kernel. Belongs to the broker's loop."""

    def __init__(self) -> None:
        #: The queue that a text at the end of a waiting record's properties means.
        self._own: dict[bytes, tuple[str, int]] = {}
        self._own_bytes = 0

    def pack(self, spans: Spans, hour: int, delivered: bytes, room: PackingRoom) -> PackedRun | None:
        """Deliver records of one hour, up to the first with which something is unusual. None if that is the first.

        ``delivered`` comes from ``delivered_at``.
        """
        while True:
            count, (end_offset, last_offset), runs, keys, marks, unknown = native.deliver(
                room.page,
                room.at,
                room.end,
                spans.source,
                spans.places,
                spans.sizes,
                spans.log_offsets,
                log_offset=room.log_offset,
                lead=room.lead,
                store_time_ms=room.store_time_ms,
                store_host=room.store_host,
                delivered=delivered,
                hour=hour,
                record_bytes_max=room.unchecked_bytes_max,
                own=self._own,
                table=room.table,
            )
            is_learned = unknown is not None and self._learn(unknown)
            if count:
                parts = [(queue, *added) for queue, added in runs]
                topics: dict[str, int] = {}
                for part in parts:
                    topic = part[0].topic
                    topics[topic] = topics.get(topic, 0) + record_count(part)
                return PackedRun(end_offset, last_offset, parts, keys, Closings(marks, end_offset, topics, hour))
            if not is_learned:
                return None

    def _learn(self, text: bytes) -> bool:
        """Note which queue a text means; False if it is one for the long way."""
        queue = queue_of(text.decode()) if len(text) <= _OWN_BYTES_MAX else None
        if queue is None or names.is_internal_topic(queue[0]):
            return False
        self._own_bytes += len(text)
        if len(self._own) >= _OWN_MAX or self._own_bytes > _OWN_TOTAL_BYTES_MAX:
            self._own.clear()
            self._own_bytes = len(text)
        self._own[text] = queue
        return True


def delivered_at(now_ms: int) -> str:
    """What the properties of messages say that are delivered now."""
    return f"\x02{Property.TIMER_DEQUEUE_MS}\x01{now_ms}\x02"


def quick_delivery(data: bytes, at: int, size: int, log_offset: int, delivered: str) -> tuple[Draft, int, str] | None:
    """The delivery of the record of ``size`` bytes at ``at``, its slot and its topic; None if something is unusual.

    ``log_offset`` is where the log has it, ``delivered`` comes from ``delivered_at``.
    """
    end = at + size
    if end > len(data) or size <= FIXED_V4_BYTES + 3:
        return None
    kept = _KEPT[data[at + _FLAGS_AT] & _HOST_FLAGS]
    body_at = at + kept.size
    if body_at > end:
        return None
    (
        own_size, magic, body_crc, flag, own_offset, sysflag, born_time_ms, born_host, store_time_ms, reconsume_times,
        body_bytes,
    ) = kept.unpack_from(data, at)  # fmt: skip
    body_end = body_at + body_bytes
    if own_offset != log_offset or own_size != size or magic != MAGIC_V1 or not body_at <= body_end <= end - 3:
        return None
    topic_end = body_end + 1 + data[body_end]
    if topic_end > body_end + 1 + TOPIC_V1_BYTES_MAX or topic_end + 2 > end:
        return None
    properties_bytes = data[topic_end] << 8 | data[topic_end + 1]
    if properties_bytes > _PROPERTIES_BYTES_MAX or topic_end + 2 + properties_bytes != end:
        return None
    body = data[body_at:body_end]
    if body and crc32(body) & CRC_MASK != body_crc:
        return None
    properties = data[topic_end + 2 : end].decode("utf-8", "replace")
    queue = own_queue(properties)
    if queue is None or _TAKES_BACK in properties or names.is_internal_topic(queue[1]):
        return None
    slot_ms, topic, queue_id = queue
    draft = Draft(
        topic,
        queue_id,
        body,
        f"{properties}{_ENQUEUED}{store_time_ms}{delivered}",
        born_time_ms,
        born_host,
        flag,
        sysflag & _NOT_TRANSACTION,
        reconsume_times,
        log_offset or FIRST,
    )
    return draft, slot_ms, topic
