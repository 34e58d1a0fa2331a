"""From the records of a pull to the messages that a consumer gets (E1, C10, F3)."""

from __future__ import annotations

from functools import lru_cache
from typing import Final

from ternmq.errors import CorruptRecord
from ternmq.message import Property, ReceivedMessage
from ternmq.types import Buffer
from ternmq.wire import properties
from ternmq.wire.compress import BODY_BYTES_MAX, CompressionMissing, decompress
from ternmq.wire.ids import offset_id
from ternmq.wire.record import Record, Sysflag, unpack_host

#: Avoids a lookup in the class for each message.
_COMPRESSED: Final = Sysflag.COMPRESSED
_UNIQUE_KEY: Final = Property.UNIQUE_KEY
_BODY_ERROR: Final = Property.BODY_ERROR


def to_message(
    record: Record,
    broker_name: str,
    min_offset: int = -1,
    max_offset: int = -1,
    *,
    bytes_max: int = BODY_BYTES_MAX,
) -> ReceivedMessage:
    """The message of a record, its body decompressed and copied: it stays valid when the pull's bytes are dropped.

    As in RocketMQ, the sysflag of a message whose body was decompressed is no longer marked as compressed. A body that
    cannot be decompressed stays as it is, and ``body_error`` has the reason.
    """
    pairs = properties.parse(record.properties)
    error, sysflag = record.error, record.sysflag
    if error:
        # Keep the error with the message: a copy made to send it back is a valid record of a damaged message.
        pairs[_BODY_ERROR] = error
    elif _BODY_ERROR in pairs:
        error = pairs[_BODY_ERROR]
    if error or not sysflag & _COMPRESSED:
        body = bytes(record.body)
    else:
        body, sysflag, error = inflate(record.body, sysflag, bytes_max=bytes_max)
    stored_id = offset_id(record.store_host, record.log_offset)
    # By position, in the order of the fields: keyword arguments would cost a fifth more.
    return ReceivedMessage(
        record.topic,
        body,
        pairs,
        broker_name,
        record.queue_id,
        record.queue_offset,
        record.log_offset,
        pairs.get(_UNIQUE_KEY) or stored_id,
        stored_id,
        record.born_time_ms,
        _address(record.born_host),
        record.store_time_ms,
        _address(record.store_host),
        record.reconsume_times,
        record.flag,
        sysflag,
        record.size,
        record.prepared_transaction_offset,
        min_offset,
        max_offset,
        0,
        error,
    )


def inflate(body: Buffer, sysflag: int, *, bytes_max: int) -> tuple[bytes, int, str]:
    """The decompressed body, its sysflag, and, if it is still compressed, the reason."""
    try:
        return decompress(body, sysflag, bytes_max=bytes_max), sysflag & ~Sysflag.COMPRESSED, ""
    except (CorruptRecord, CompressionMissing) as error:
        return bytes(body), sysflag, str(error)


# A pull has many messages from few hosts, and formatting an address costs as much as reading its record.
@lru_cache(maxsize=1024)
def _address(host: bytes) -> str:
    ip, port = unpack_host(host)
    return f"{ip}:{port}" if ":" not in ip else f"[{ip}]:{port}"
