"""The record: one message as bytes, in the CommitLog and in the bodies of pull, pop, view and query replies (C1, C11).

The broker sends what it stored, so there is one layout for disk and wire. Big-endian, no padding::

    at (IPv4)  bytes
     0   4        size of the record
     4   4        magic (V1, V2 or blank)
     8   4        CRC-32 of the body & 0x7FFFFFFF; 0 without a body
    12   4        queue id
    16   4        flag, the application's own
    20   8        queue offset
    28   8        log offset of this record
    36   4        sysflag
    40   8        born time, ms
    48   8 or 20  born host: address and port
    56   8        store time, ms
    64   8 or 20  store host
    72   4        how often it was consumed before
    76   8        log offset of the prepared half, in a transaction
    84   4 + n    body as it was sent, compressed or not
         1 + n    topic; V2: 2 + n, only for more than 127 bytes
         2 + n    properties (``wire.properties``), at most 32,767 bytes

A host is an IPv4 or IPv6 address and a 4-byte port; only two bits of the sysflag say which. So ``pack_record`` sets
those bits according to the given hosts, whatever the sender claimed. Lengths are signed, as in Java: a V1 topic has at
most 127 bytes. All fixed fields up to the length of the body are contiguous, hence *one* ``struct`` call for each pair
of address families.

Invariants: a record that ``unpack_record`` returns has lengths that add up to its size and (if checked) a body that
matches its CRC; anything else raises ``CorruptRecord``. Bodies are views of the page, never copies. ``read_records``
is for readers that must continue after a damaged record: it returns that one, too, with an ``error``.
"""

from __future__ import annotations

import mmap
import socket
import struct
from typing import Final, TypeAlias
from zlib import crc32

import msgspec

from ternmq.errors import CorruptRecord
from ternmq.types import Buffer

#: What a record can be packed into.
Page: TypeAlias = bytearray | memoryview | mmap.mmap

#: CommitLog.MESSAGE_MAGIC_CODE, MessageDecoder.MESSAGE_MAGIC_CODE_V2 (0xDAA320AB) and BLANK_MAGIC_CODE, signed.
MAGIC_V1: Final = -626843481
MAGIC_V2: Final = -626843477
MAGIC_BLANK: Final = -875286124

#: Properties have a signed 16-bit length, a V1 topic a signed 8-bit one.
PROPERTIES_BYTES_MAX: Final = 32_767
TOPIC_V1_BYTES_MAX: Final = 127

CRC_MASK: Final = 0x7FFFFFFF

#: Free bytes that a segment keeps after its last record: room for a blank (RocketMQ's END_FILE_MIN_BLANK_LENGTH).
BLANK_BYTES: Final = 8

#: The fixed fields of a record with IPv4 hosts, in order: name and bytes.
FIELDS_V4: Final = (
    ("size", 4),
    ("magic", 4),
    ("body_crc", 4),
    ("queue_id", 4),
    ("flag", 4),
    ("queue_offset", 8),
    ("log_offset", 8),
    ("sysflag", 4),
    ("born_time", 8),
    ("born_host", 8),
    ("store_time", 8),
    ("store_host", 8),
    ("reconsume_times", 4),
    ("prepared_offset", 8),
    ("body_bytes", 4),
)


def field_at(name: str) -> int:
    """Position of a fixed field in a record with IPv4 hosts."""
    at = 0
    for each, length_bytes in FIELDS_V4:
        if each == name:
            return at
        at += length_bytes
    raise KeyError(name)


#: Position of the magic number, for all kinds of hosts. Those of V1 and V2 begin with the same three bytes.
MAGIC_AT: Final = field_at("magic")
MAGIC_BEGIN: Final = (MAGIC_V1 & 0xFFFFFFFF).to_bytes(4, "big")[:3]


class Sysflag:
    """Bits of the sysflag (RocketMQ's ``MessageSysFlag``)."""

    COMPRESSED: Final = 0x1
    MULTI_TAGS: Final = 0x2
    PREPARED: Final = 0x4
    COMMIT: Final = 0x8
    ROLLBACK: Final = 0xC
    TRANSACTION_MASK: Final = 0xC
    BORN_V6: Final = 0x10
    STORE_V6: Final = 0x20
    COMPRESSION_MASK: Final = 0x700
    LZ4: Final = 0x100
    ZSTD: Final = 0x200
    ZLIB: Final = 0x300


_HOST_FLAGS: Final = Sysflag.BORN_V6 | Sysflag.STORE_V6
HOST_V4_BYTES: Final = 8
_HOST_V6_BYTES: Final = 20
#: How many bytes later the fields after a host are if it is IPv6.
V6_MORE_BYTES: Final = _HOST_V6_BYTES - HOST_V4_BYTES
NO_HOST_FLAGS: Final = ~_HOST_FLAGS


#: size magic crc queue_id flag queue_offset log_offset sysflag born_time_ms: the same for all hosts.
_PREFIX: Final = struct.Struct(">iiiiiqqiq")


def _suffix_format(host_flags: int) -> str:
    # born_host store_time_ms store_host reconsume_times prepared_transaction_offset body_bytes
    born_bytes = _HOST_V6_BYTES if host_flags & Sysflag.BORN_V6 else HOST_V4_BYTES
    store_bytes = _HOST_V6_BYTES if host_flags & Sysflag.STORE_V6 else HOST_V4_BYTES
    return f"{born_bytes}sq{store_bytes}siqi"


#: By the two host flags. A reader learns them from the prefix; a writer knows them and packs both parts at once.
_SUFFIX: Final = {flags: struct.Struct(">" + _suffix_format(flags)) for flags in (0, 0x10, 0x20, 0x30)}
_FIXED: Final = {flags: struct.Struct(_PREFIX.format + _suffix_format(flags)) for flags in (0, 0x10, 0x20, 0x30)}
_FIXED_V4: Final = _FIXED[0]
#: For the store's hot path, which packs what ``pack_record`` would pack for IPv4 hosts, without the call: all fields in
#: the order of the layout, size to body length.
pack_fixed_v4_into: Final = _FIXED_V4.pack_into
pack_fixed_v4: Final = _FIXED_V4.pack
#: The same fields, for readers of whole answers.
unpack_fixed_v4: Final = _FIXED_V4.unpack_from
FIXED_V4_BYTES: Final = _FIXED_V4.size
#: An empty V1 record of IPv4 hosts: the fixed part and the lengths of topic and properties.
RECORD_BYTES_MIN: Final = _FIXED_V4.size + 1 + 2

#: For records that share the fields from sysflag to the prepared half: these fields are one value, for all families.
_SHARED_HEADS: Final = {shared_bytes: struct.Struct(f">iiiiiqq{shared_bytes}si") for shared_bytes in (48, 60, 72)}

_HEAD: Final = struct.Struct(">ii")
#: For loops over many records: size and magic; size and queue offset.
unpack_head: Final = _HEAD.unpack_from
unpack_place: Final = struct.Struct(">i16xq").unpack_from
#: Size, magic, flag and log offset of a record, unchecked.
unpack_log_place: Final = struct.Struct(">ii8xi8xq").unpack_from
#: magic sysflag body_bytes: gives the position of the properties in a record with IPv4 hosts.
_unpack_lengths: Final = struct.Struct(">4xi28xi44xi").unpack_from
#: size magic crc queue_id (flag) queue_offset log_offset sysflag (born) store_time_ms (store host, times)
#: prepared_offset body_bytes: the fields of a record with IPv4 hosts that recovery looks at.
unpack_checked_v4: Final = struct.Struct(">iiii4xqqi16xq12xqi").unpack_from
#: size magic log_offset
_unpack_size: Final = struct.Struct(">ii20xq").unpack_from
_INT: Final = struct.Struct(">i")
_SHORT: Final = struct.Struct(">h")
_INT_LONG: Final = struct.Struct(">iq")
_LONG: Final = struct.Struct(">q")
_PORT: Final = struct.Struct(">i")

_SYSFLAG_AT: Final = field_at("sysflag")
_STORE_TIME_AT: Final = field_at("store_time")
#: The bytes of a record up to its store time, for all kinds of hosts.
HEAD_BYTES: Final = _STORE_TIME_AT + V6_MORE_BYTES + 8


# --- Hosts ----------------------------------------------------------------------------------------------------


def pack_host(ip: str, port: int) -> bytes:
    """An address as a record holds it: 8 bytes for IPv4, 20 for IPv6. ``ip`` is numeric, else ``OSError``.

    An IPv4 address that a dual-stack socket shows as ``::ffff:1.2.3.4`` is stored as IPv4; old clients could not read
    the record otherwise.
    """
    if ":" not in ip:
        return socket.inet_pton(socket.AF_INET, ip) + _PORT.pack(port)
    address = socket.inet_pton(socket.AF_INET6, ip.partition("%")[0])
    if address[:12] == b"\0" * 10 + b"\xff\xff":
        address = address[12:]
    return address + _PORT.pack(port)


def unpack_host(host: bytes) -> tuple[str, int]:
    """Address and port of a host's 8 or 20 bytes."""
    family = socket.AF_INET if len(host) == HOST_V4_BYTES else socket.AF_INET6
    return socket.inet_ntop(family, host[:-4]), _PORT.unpack(host[-4:])[0]


# --- Writing --------------------------------------------------------------------------------------------------


def record_bytes(*, body: int, topic: int, properties: int, born_host: int, store_host: int) -> int:
    """Size of a record whose parts have these sizes in bytes."""
    size = RECORD_BYTES_MIN - 2 * HOST_V4_BYTES + born_host + store_host + body + topic + properties
    return size if topic <= TOPIC_V1_BYTES_MAX else size + 1


def pack_record(
    page: Page,
    at: int,
    *,
    size: int,
    queue_id: int,
    flag: int,
    queue_offset: int,
    log_offset: int,
    sysflag: int,
    born_time_ms: int,
    born_host: bytes,
    store_time_ms: int,
    store_host: bytes,
    reconsume_times: int,
    prepared_transaction_offset: int,
    body: Buffer,
    topic: bytes,
    properties: bytes,
) -> None:
    """Write a record of ``size`` bytes (see ``record_bytes``) to ``page`` at ``at``; the caller has made room.

    The body may be any contiguous buffer of bytes; it is copied once, to its place.
    """
    sysflag &= NO_HOST_FLAGS
    fixed = _FIXED_V4
    if len(born_host) + len(store_host) != 2 * HOST_V4_BYTES:
        if len(born_host) == _HOST_V6_BYTES:
            sysflag |= Sysflag.BORN_V6
        if len(store_host) == _HOST_V6_BYTES:
            sysflag |= Sysflag.STORE_V6
        fixed = _FIXED[sysflag & _HOST_FLAGS]
    body_bytes = len(body)
    topic_bytes = len(topic)
    fixed.pack_into(
        page,
        at,
        size,
        MAGIC_V1 if topic_bytes <= TOPIC_V1_BYTES_MAX else MAGIC_V2,
        crc32(body) & CRC_MASK,
        queue_id,
        flag,
        queue_offset,
        log_offset,
        sysflag,
        born_time_ms,
        born_host,
        store_time_ms,
        store_host,
        reconsume_times,
        prepared_transaction_offset,
        body_bytes,
    )
    at += fixed.size
    page[at : at + body_bytes] = body
    at += body_bytes
    if topic_bytes <= TOPIC_V1_BYTES_MAX:
        page[at] = topic_bytes
        at += 1
    else:
        _SHORT.pack_into(page, at, topic_bytes)
        at += 2
    page[at : at + topic_bytes] = topic
    at += topic_bytes
    _SHORT.pack_into(page, at, len(properties))
    at += 2
    page[at : at + len(properties)] = properties


def shared_fields(
    sysflag: int, born_time_ms: int, born_host: bytes, store_time_ms: int, store_host: bytes
) -> tuple[bytes, struct.Struct]:
    """The fields that records of one sender and one moment share, from sysflag to the prepared half; and the struct
    that packs size, magic, CRC, queue id, flag, queue offset, log offset, these fields, length of the body."""
    sysflag &= ~_HOST_FLAGS
    if len(born_host) == _HOST_V6_BYTES:
        sysflag |= Sysflag.BORN_V6
    if len(store_host) == _HOST_V6_BYTES:
        sysflag |= Sysflag.STORE_V6
    fields = b"".join(
        (
            _INT_LONG.pack(sysflag, born_time_ms),
            born_host,
            _LONG.pack(store_time_ms),
            store_host,
            _INT_LONG.pack(0, 0),
        )
    )
    return fields, _SHARED_HEADS[len(fields)]


def topic_part(topic: bytes) -> tuple[bytes, int]:
    """A topic with its length in front, and the magic of the records that use this form of the length."""
    if len(topic) <= TOPIC_V1_BYTES_MAX:
        return bytes((len(topic),)) + topic, MAGIC_V1
    return _SHORT.pack(len(topic)) + topic, MAGIC_V2


def pack_blank(page: Page, at: int, space_left: int) -> None:
    """Mark the rest of a segment, ``space_left`` bytes from ``at`` on, as unused."""
    _HEAD.pack_into(page, at, space_left, MAGIC_BLANK)


# --- Reading --------------------------------------------------------------------------------------------------


class Record(msgspec.Struct, gc=False):
    """One record as it was stored. ``body`` is a view of the page: copy it to keep it longer.

    ``error`` says what is wrong with a record of ``read_records``; all other records are valid.
    """

    size: int
    magic: int
    body_crc: int
    queue_id: int
    flag: int
    queue_offset: int
    log_offset: int
    sysflag: int
    born_time_ms: int
    born_host: bytes
    store_time_ms: int
    store_host: bytes
    reconsume_times: int
    prepared_transaction_offset: int
    body: memoryview
    topic: str
    properties: str
    error: str = ""


def repacked(record: Record, *, topic: bytes, properties: bytes) -> memoryview:
    """The bytes of a record with another topic and other properties; all else is as it stands there."""
    size = record_bytes(
        body=len(record.body),
        topic=len(topic),
        properties=len(properties),
        born_host=len(record.born_host),
        store_host=len(record.store_host),
    )
    page = bytearray(size)
    pack_record(
        page,
        0,
        size=size,
        queue_id=record.queue_id,
        flag=record.flag,
        queue_offset=record.queue_offset,
        log_offset=record.log_offset,
        sysflag=record.sysflag,
        born_time_ms=record.born_time_ms,
        born_host=record.born_host,
        store_time_ms=record.store_time_ms,
        store_host=record.store_host,
        reconsume_times=record.reconsume_times,
        prepared_transaction_offset=record.prepared_transaction_offset,
        body=record.body,
        topic=topic,
        properties=properties,
    )
    return memoryview(page)


def peek_head(page: Buffer | mmap.mmap, at: int = 0) -> tuple[int, int]:
    """Size and magic at ``at``, unchecked; the page must have at least 8 bytes there."""
    size, magic = _HEAD.unpack_from(page, at)
    return size, magic


def record_size(data: Buffer, log_offset: int, at: int = 0) -> int:
    """Size of the record at ``at`` in ``data``, if its own log offset is ``log_offset``; else 0."""
    if len(data) - at < _STORE_TIME_AT:
        return 0
    size, magic, own_offset = _unpack_size(data, at)
    return size if own_offset == log_offset and magic != MAGIC_BLANK and size >= _STORE_TIME_AT else 0


def head_store_time(head: Buffer) -> int:
    """When a record was stored, from its first ``HEAD_BYTES``."""
    (sysflag,) = _INT.unpack_from(head, _SYSFLAG_AT)
    at = _STORE_TIME_AT + V6_MORE_BYTES if sysflag & Sysflag.BORN_V6 else _STORE_TIME_AT
    store_time_ms: int = _LONG.unpack_from(head, at)[0]
    return store_time_ms


def behind_body(record: Record) -> int:
    """Position after the body of a record."""
    v6_hosts = bool(record.sysflag & Sysflag.BORN_V6) + bool(record.sysflag & Sysflag.STORE_V6)
    return FIXED_V4_BYTES + v6_hosts * V6_MORE_BYTES + len(record.body)


def peek_properties(page: Buffer, at: int, size: int) -> str | None:
    """The properties of the record of ``size`` bytes at ``at``; None if it has none inside.

    Hot: a filter reads all messages of a queue this way. So only what keeps it inside the record is checked.
    """
    end = at + size
    if size < RECORD_BYTES_MIN:
        return None
    magic, sysflag, body_bytes = _unpack_lengths(page, at)
    if magic == MAGIC_V1 and not sysflag & _HOST_FLAGS:
        if not 0 <= body_bytes <= size - RECORD_BYTES_MIN:
            return None
        topic_at = at + FIXED_V4_BYTES + body_bytes
        properties_at = topic_at + 3 + page[topic_at]
    else:
        topic_at = at + _FIXED[sysflag & _HOST_FLAGS].size
        if topic_at > end:
            return None
        (body_bytes,) = _INT.unpack_from(page, topic_at - 4)
        topic_at += body_bytes
        if body_bytes < 0 or topic_at + 2 > end:
            return None
        topic_bytes = page[topic_at] - 1 if magic == MAGIC_V1 else _SHORT.unpack_from(page, topic_at)[0]
        properties_at = topic_at + 4 + topic_bytes
    return str(page[properties_at:end], "utf-8", "replace") if topic_at < properties_at <= end else None


def unpack_record(page: Buffer | mmap.mmap, at: int = 0, *, check_crc: bool = True, end: int | None = None) -> Record:
    """The record at ``at``; it must end at ``end`` (default: where the page ends) or before.

    Raises ``CorruptRecord`` with the reason. Bytes after the record are not read.
    """
    view = page if type(page) is memoryview else memoryview(page)
    if end is None:
        end = len(view)
    if end - at < RECORD_BYTES_MIN:
        raise CorruptRecord(f"{end - at} bytes at {at} are too few for a record")
    # As if all hosts were IPv4: most are.
    (
        size,
        magic,
        body_crc,
        queue_id,
        flag,
        queue_offset,
        log_offset,
        sysflag,
        born_time_ms,
        born_host,
        store_time_ms,
        store_host,
        reconsume_times,
        prepared_transaction_offset,
        body_bytes,
    ) = unpack_fixed_v4(view, at)
    if magic != MAGIC_V1 and magic != MAGIC_V2:
        what = "the end of a segment" if magic == MAGIC_BLANK else f"no record (magic {magic & 0xFFFFFFFF:#010x})"
        raise CorruptRecord(f"at {at} there is {what}")
    record_end = at + size
    if size < RECORD_BYTES_MIN or record_end > end:
        raise CorruptRecord(f"the record at {at} claims {size} bytes where {end - at} are left", log_offset=log_offset)
    body_at = at + FIXED_V4_BYTES
    if sysflag & _HOST_FLAGS:
        suffix = _SUFFIX[sysflag & _HOST_FLAGS]
        body_at = at + _PREFIX.size + suffix.size
        if body_at + 3 > record_end:
            raise CorruptRecord(f"the record at {at} is too short for its IPv6 hosts", log_offset=log_offset)
        born_host, store_time_ms, store_host, reconsume_times, prepared_transaction_offset, body_bytes = (
            suffix.unpack_from(view, at + _PREFIX.size)
        )
    topic_at = body_at + body_bytes
    # The lengths of the topic, one or two bytes, and of the properties, two bytes, must follow the body.
    length_bytes = 1 if magic == MAGIC_V1 else 2
    if body_bytes < 0 or topic_at + length_bytes + 2 > record_end:
        raise _lengths_differ(at, log_offset)
    if magic == MAGIC_V1:
        topic_bytes = view[topic_at]
        if topic_bytes > TOPIC_V1_BYTES_MAX:
            raise _lengths_differ(at, log_offset)
    else:
        (topic_bytes,) = _SHORT.unpack_from(view, topic_at)
    topic_at += length_bytes
    topic_end = topic_at + topic_bytes
    if topic_bytes < 0 or topic_end + 2 > record_end:
        raise _lengths_differ(at, log_offset)
    (properties_bytes,) = _SHORT.unpack_from(view, topic_end)
    if topic_end + 2 + properties_bytes != record_end:
        raise _lengths_differ(at, log_offset)
    body = view[body_at : body_at + body_bytes]
    # As in Java, the CRC of an empty body is not checked.
    if check_crc and body_bytes and crc32(body) & CRC_MASK != body_crc:
        raise CorruptRecord(f"the body of the record at {at} does not match its CRC", log_offset=log_offset)
    try:
        topic = str(view[topic_at:topic_end], "utf-8")
    except UnicodeDecodeError:
        raise CorruptRecord(f"the topic of the record at {at} is not UTF-8", log_offset=log_offset) from None
    return Record(
        size,
        magic,
        body_crc,
        queue_id,
        flag,
        queue_offset,
        log_offset,
        sysflag,
        born_time_ms,
        born_host,
        store_time_ms,
        store_host,
        reconsume_times,
        prepared_transaction_offset,
        body,
        topic,
        # A batch is stored as its sender packed it, so properties may be any bytes. They must not end the log here.
        str(view[topic_end + 2 : record_end], "utf-8", "replace"),
    )


def unpack_records(body: Buffer) -> list[Record]:
    """All records of a pull body, which follow each other without gaps. Raises ``CorruptRecord``."""
    records: list[Record] = []
    view = memoryview(body)
    at, end = 0, len(view)
    while at < end:
        record = unpack_record(view, at, end=end)
        records.append(record)
        at += record.size
    return records


def read_records(body: Buffer) -> list[Record]:
    """All records of a pull body. Damaged ones have an ``error``: they must not block the others.

    A record whose body does not match its CRC has all its fields. Any other damaged record has only queue, offsets and
    flag, if they can be trusted; its topic is empty and its body is the whole record. Raises ``CorruptRecord``
    if the size of a record is wrong, since the position of the next one is then unknown.
    """
    try:
        return unpack_records(body)
    except CorruptRecord:
        pass
    records: list[Record] = []
    view = memoryview(body)
    at, end = 0, len(view)
    while at < end:
        try:
            record = unpack_record(view, at, end=end)
        except CorruptRecord as error:
            record = _damaged(view, at, end, error)
        records.append(record)
        at += record.size
    return records


def _damaged(view: memoryview, at: int, end: int, error: CorruptRecord) -> Record:
    if end - at < RECORD_BYTES_MIN:
        raise error
    size, magic, body_crc, queue_id, flag, queue_offset, log_offset, _, born_time_ms = _PREFIX.unpack_from(view, at)
    if size < RECORD_BYTES_MIN or at + size > end:
        raise error
    try:
        record = unpack_record(view, at, end=end, check_crc=False)
    except CorruptRecord:
        no_host = bytes(HOST_V4_BYTES)
        record = Record(
            size,
            magic,
            body_crc,
            queue_id,
            flag,
            queue_offset,
            log_offset,
            0,
            born_time_ms,
            no_host,
            0,
            no_host,
            0,
            0,
            view[at : at + size],
            "",
            "",
        )
    record.error = str(error)
    return record


def _lengths_differ(at: int, log_offset: int) -> CorruptRecord:
    return CorruptRecord(f"the lengths inside the record at {at} do not add up to its size", log_offset=log_offset)
