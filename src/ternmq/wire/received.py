"""From the records of a pull to the messages that a consumer gets (E1, C10, F3)."""

from __future__ import annotations

from functools import lru_cache

from ternmq.message import Property, ReceivedMessage
from ternmq.wire import properties
from ternmq.wire.compress import BODY_BYTES_MAX, decompress
from ternmq.wire.ids import offset_id
from ternmq.wire.record import Record, Sysflag, unpack_host


def to_message(record: Record, broker_name: str, *, bytes_max: int = BODY_BYTES_MAX) -> ReceivedMessage:
    """The message of a record, its body decompressed and copied: it may be kept when the pull's bytes are gone.

    As in RocketMQ, the sysflag of a message whose body was decompressed does not say «compressed» any more. Raises
    ``CorruptRecord`` for a body that cannot be decompressed, ``CompressionMissing`` for want of a package.
    """
    pairs = properties.parse(record.properties)
    stored_id = offset_id(record.store_host, record.log_offset)
    return ReceivedMessage(
        topic=record.topic,
        body=decompress(record.body, record.sysflag, bytes_max=bytes_max),
        properties=pairs,
        broker_name=broker_name,
        queue_id=record.queue_id,
        queue_offset=record.queue_offset,
        log_offset=record.log_offset,
        message_id=pairs.get(Property.UNIQUE_KEY) or stored_id,
        offset_id=stored_id,
        born_time_ms=record.born_time_ms,
        born_host=_address(record.born_host),
        store_time_ms=record.store_time_ms,
        store_host=_address(record.store_host),
        reconsume_times=record.reconsume_times,
        flag=record.flag,
        sysflag=record.sysflag & ~Sysflag.COMPRESSED,
        store_bytes=record.size,
        prepared_transaction_offset=record.prepared_transaction_offset,
    )


# A pull brings many messages of few hosts, and telling an address costs as much as reading its record.
@lru_cache(maxsize=1024)
def _address(host: bytes) -> str:
    ip, port = unpack_host(host)
    return f"{ip}:{port}" if ":" not in ip else f"[{ip}]:{port}"
