"""From the bytes of an answer straight to messages, without a ``Record`` in between (E1, C1).

Consumers read millions of records, and an application looks at few of their fields. So a ``StoredMessage`` takes over
what a record has at fixed places, and works out the rest when it is asked for: properties, ids and addresses. Each of
these costs as much as all fixed fields together.

``read_stored`` knows the usual record only: version 1, IPv4 hosts, intact. An answer with any other record is left to
``wire.record`` and ``StoredMessage.of``, which take several times as long. Taking the records apart is a kernel
(``native.read_rows``), where there is one; the objects are made here, as setting slots is cheap in Python.
"""

from __future__ import annotations

from functools import lru_cache
from typing import TYPE_CHECKING, Any, Final, Self, TypeVar
from zlib import crc32

from ternmq.errors import CorruptRecord
from ternmq.kernels import HAS_NATIVE, native
from ternmq.message import Property, ReceivedMessage
from ternmq.types import Buffer
from ternmq.wire import properties
from ternmq.wire.compress import CompressionMissing, decompress
from ternmq.wire.ids import offset_id
from ternmq.wire.record import (
    CRC_MASK,
    FIXED_V4_BYTES,
    MAGIC_V1,
    NO_HOST_FLAGS,
    RECORD_BYTES_MIN,
    TOPIC_V1_BYTES_MAX,
    Record,
    Sysflag,
    read_records,
    unpack_fixed_v4,
    unpack_host,
)

_HOST_FLAGS: Final = ~NO_HOST_FLAGS
_BODY_ERROR: Final = Property.BODY_ERROR
_ERROR_MARK: Final = f"{_BODY_ERROR}\x01".encode()
_SHORT_MAX: Final = 0x7FFF


class StoredMessage(ReceivedMessage):
    """A received message whose ``properties``, ids and addresses are worked out when they are first asked for.

    A slot of ``ReceivedMessage`` that is not set yet leads to ``__getattr__``, which sets it. Pickled or copied, it
    becomes a plain ``ReceivedMessage``.
    """

    __slots__ = ("raw_born_host", "raw_properties", "raw_store_host")

    #: The properties as the record has them; None once ``properties`` were worked out, as they can be changed.
    raw_properties: bytes | None
    #: The addresses as the record has them.
    raw_born_host: bytes
    raw_store_host: bytes

    @classmethod
    def of(cls, record: Record, broker_name: str, min_offset: int = -1, max_offset: int = -1) -> Self:
        """The message of any record; its body is copied, and still compressed if it was."""
        message = cls.__new__(cls)
        pairs = properties.parse(record.properties)
        message.raw_properties = None
        message.properties = pairs
        if record.error:
            # It goes with the message: a copy, made to send it back, is a sound record of a damaged message.
            pairs[_BODY_ERROR] = record.error
        message.body_error = record.error or pairs.get(_BODY_ERROR, "")
        message.raw_born_host, message.raw_store_host = record.born_host, record.store_host
        message.topic, message.body, message.broker_name = record.topic, bytes(record.body), broker_name
        message.queue_id, message.queue_offset = record.queue_id, record.queue_offset
        message.log_offset, message.store_bytes = record.log_offset, record.size
        message.born_time_ms, message.store_time_ms = record.born_time_ms, record.store_time_ms
        message.reconsume_times, message.flag, message.sysflag = record.reconsume_times, record.flag, record.sysflag
        message.prepared_transaction_offset = record.prepared_transaction_offset
        message.min_offset, message.max_offset, message.consume_start_time_ms = min_offset, max_offset, 0
        return message

    @property
    def tags(self) -> str:
        return self.property_of(Property.TAGS) or ""

    @property
    def keys(self) -> tuple[str, ...]:
        return tuple((self.property_of(Property.KEYS) or "").split())

    def property_of(self, name: str) -> str | None:
        """The value of the property ``name``, or None. Faster than ``properties`` if you need only one."""
        raw = self.raw_properties
        if raw is None:
            return self.properties.get(name)
        return properties.find(str(raw, "utf-8", "replace"), name) if name.encode() in raw else None

    def add_property(self, name: str, value: str) -> None:
        """Set the property ``name`` to ``value``."""
        raw = self.raw_properties
        if raw is None:
            self.properties[name] = value
        else:
            # Of two pairs with one name the last counts. The last of all may lack its end.
            end = b"\x02" if raw and not raw.endswith(b"\x02") else b""
            self.raw_properties = b"%b%b%b\x01%b\x02" % (raw, end, name.encode(), value.encode())

    def __reduce__(self) -> tuple[Any, ...]:
        return ReceivedMessage, tuple(getattr(self, name) for name in ReceivedMessage.__match_args__)

    # Hidden from type checkers, for which a class with __getattr__ has every attribute.
    if not TYPE_CHECKING:

        def __getattr__(self, name: str) -> object:
            make = _MAKERS.get(name)
            if make is None:
                raise AttributeError(f"{type(self).__name__!r} object has no attribute {name!r}")
            value = make(self)
            setattr(self, name, value)
            return value


S = TypeVar("S", bound=StoredMessage)
#: The fields of a usual record: size, queue id, flag, queue offset, log offset, sysflag, born time, born host, store
#: time, store host, reconsume times, prepared transaction offset, body, topic, properties.
_Row = tuple[int, int, int, int, int, int, int, bytes, int, bytes, int, int, bytes, str, bytes]


def read_stored(
    body: Buffer, make: type[S], broker_name: str, min_offset: int = -1, max_offset: int = -1
) -> tuple[list[S], int] | None:
    """The messages of an answer, as objects of the class ``make``, and their sysflags or-ed; None unless all of its
    records are usual ones.

    Bodies are copied, and still compressed where they were. Hot: attributes are set one by one, as a call of
    ``__init__`` with twenty arguments takes several times as long.
    """
    data = bytes(body)
    read = native.read_rows(data) if HAS_NATIVE else None
    if read is None:
        # Also where the compiled version is in doubt: this one may read what it does not.
        read = _read_rows(data)
        if read is None:
            return None
    rows, flags = read
    new, messages = make.__new__, []
    for (
        size, queue_id, flag, queue_offset, log_offset, sysflag, born_time_ms, born_host, store_time_ms, store_host,
        reconsume_times, prepared_offset, content, topic, raw,
    ) in rows:  # fmt: skip
        message = new(make)
        message.raw_properties = raw
        message.body_error = ""
        message.raw_born_host = born_host
        message.raw_store_host = store_host
        message.topic = topic
        message.body = content
        message.broker_name = broker_name
        message.queue_id = queue_id
        message.queue_offset = queue_offset
        message.log_offset = log_offset
        message.store_bytes = size
        message.born_time_ms = born_time_ms
        message.store_time_ms = store_time_ms
        message.reconsume_times = reconsume_times
        message.flag = flag
        message.sysflag = sysflag
        message.prepared_transaction_offset = prepared_offset
        message.min_offset = min_offset
        message.max_offset = max_offset
        message.consume_start_time_ms = 0
        messages.append(message)
    if _ERROR_MARK in data:
        for message in messages:
            if _ERROR_MARK in (message.raw_properties or b""):
                message.body_error = message.properties.get(_BODY_ERROR, "")
    return messages, flags


def _read_rows(data: bytes) -> tuple[list[_Row], int] | None:
    """The fields of each record, and the sysflags or-ed; None unless all records are usual ones. ``native.read_rows``
    does the same."""
    at, end = 0, len(data)
    rows: list[_Row] = []
    flags = 0
    last_topic, topic = b"", ""
    while at < end:
        if end - at < RECORD_BYTES_MIN:
            return None
        (
            size, magic, body_crc, queue_id, flag, queue_offset, log_offset, sysflag, born_time_ms, born_host,
            store_time_ms, store_host, reconsume_times, prepared_offset, body_bytes,
        ) = unpack_fixed_v4(data, at)  # fmt: skip
        body_at, record_end = at + FIXED_V4_BYTES, at + size
        body_end = body_at + body_bytes
        if magic != MAGIC_V1 or sysflag & _HOST_FLAGS or not body_at <= body_end <= record_end - 3 <= end - 3:
            return None
        topic_at = body_end + 1
        topic_end = topic_at + data[body_end]
        if topic_end - topic_at > TOPIC_V1_BYTES_MAX or topic_end + 2 > record_end:
            return None
        properties_bytes = data[topic_end] << 8 | data[topic_end + 1]
        if properties_bytes > _SHORT_MAX or topic_end + 2 + properties_bytes != record_end:
            return None
        content = data[body_at:body_end]
        # As in Java, the CRC of an empty body is not looked at.
        if content and crc32(content) & CRC_MASK != body_crc:
            return None
        raw_topic = data[topic_at:topic_end]
        if raw_topic != last_topic:
            last_topic = raw_topic
            try:
                topic = str(raw_topic, "utf-8")
            except UnicodeDecodeError:
                return None
        rows.append((
            size, queue_id, flag, queue_offset, log_offset, sysflag, born_time_ms, born_host, store_time_ms, store_host,
            reconsume_times, prepared_offset, content, topic, data[topic_end + 2 : record_end],
        ))  # fmt: skip
        flags |= sysflag
        at = record_end
    return rows, flags


def read_answer(
    body: Buffer, make: type[S], broker_name: str, min_offset: int = -1, max_offset: int = -1
) -> tuple[list[S], int]:
    """As ``read_stored``, for records of any kind: of a damaged one there is a message with a ``body_error``.

    Raises ``CorruptRecord`` when the records cannot be told apart.
    """
    read = read_stored(body, make, broker_name, min_offset, max_offset)
    if read is not None:
        return read
    records = read_records(body)
    flags = 0
    for record in records:
        flags |= record.sysflag
    return [make.of(record, broker_name, min_offset, max_offset) for record in records], flags


def inflate(body: Buffer, sysflag: int, *, bytes_max: int) -> tuple[bytes, int, str]:
    """A compressed body as an application wants it, its sysflag, and why it is still compressed if it is.

    As in RocketMQ, the sysflag of a decompressed body does not say "compressed" any more.
    """
    try:
        return decompress(body, sysflag, bytes_max=bytes_max), sysflag & ~Sysflag.COMPRESSED, ""
    except (CorruptRecord, CompressionMissing) as error:
        return bytes(body), sysflag, str(error)


# An answer has many messages of few hosts, and telling an address costs as much as reading its record.
@lru_cache(maxsize=1024)
def address_text(host: bytes) -> str:
    """``ip:port`` of an address as a record has it."""
    ip, port = unpack_host(host)
    return f"{ip}:{port}" if ":" not in ip else f"[{ip}]:{port}"


def _properties(message: StoredMessage) -> dict[str, str]:
    raw, message.raw_properties = message.raw_properties, None
    return properties.parse(str(raw or b"", "utf-8", "replace"))


#: By the name of an attribute that is not set: what makes its value.
_MAKERS: Final = {
    "properties": _properties,
    "message_id": lambda message: message.property_of(Property.UNIQUE_KEY) or message.offset_id,
    "offset_id": lambda message: offset_id(message.raw_store_host, message.log_offset),
    "born_host": lambda message: address_text(message.raw_born_host),
    "store_host": lambda message: address_text(message.raw_store_host),
    # Set by ``__init__`` alone: of a message that ``dataclasses.replace`` made.
    "raw_properties": lambda _: None,
    "raw_born_host": lambda _: b"",
    "raw_store_host": lambda _: b"",
}
