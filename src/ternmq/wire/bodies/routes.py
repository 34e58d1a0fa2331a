"""What a name server knows: routes, clusters, and the registrations that it learns them from (A1, A2, A4, A5).

A registration is sent as JSON or in a compressed form: a zlib stream of items, each after its length (int32)::

    DataVersion as JSON
    count of topics (int32, without a length), then for each: name read write perm filterType [attributes as JSON]
    filter servers, a JSON list
    only if the broker's version is 5.0 (413) or later: count (int32), then a JSON QueueMapping each

The blank-separated form of a topic lacks its order flag and its sysflag. The first byte (``{`` or ``x``) shows which
form a body has, since brokers of RocketMQ 5 do not always set the field in the header.
"""

from __future__ import annotations

import struct
import zlib
from typing import Final

import msgspec

from ternmq.errors import RemoteProtocolError
from ternmq.types import Buffer
from ternmq.wire.bodies.codec import Body, always, decode, encode
from ternmq.wire.bodies.topics import DataVersion, QueueMapping, TopicConfig, TopicTable

#: The namespace of name servers in which RocketMQ keeps the queues of ordered topics, as ``broker:queues;…``.
ORDER_TOPICS: Final = "ORDER_TOPIC_CONFIG"


class BrokerData(Body, frozen=True, kw_only=True):
    """The brokers of one name: id (0 is the master) to address."""

    cluster: str = always(str)
    broker_name: str
    broker_addrs: dict[int, str] = always(dict)
    enable_acting_master: bool | None = None
    zone_name: str | None = None


class QueueData(Body, frozen=True, kw_only=True):
    """How many queues of a topic the brokers of one name have."""

    broker_name: str
    read_queue_nums: int = always(int)
    write_queue_nums: int = always(int)
    perm: int = always(int)
    topic_sys_flag: int = always(int)


class TopicRouteBody(Body, frozen=True, kw_only=True):
    """GET_ROUTEINFO_BY_TOPIC 105. ``order_topic_conf`` reads ``broker:queues;…``."""

    broker_datas: list[BrokerData] = always(list)
    queue_datas: list[QueueData] = always(list)
    filter_server_table: dict[str, list[str]] = always(dict)
    order_topic_conf: str | None = None
    topic_queue_mapping_by_broker: dict[str, QueueMapping] | None = None


class ClusterInfo(Body, frozen=True, kw_only=True):
    """GET_BROKER_CLUSTER_INFO 106: brokers by name, and the names in each cluster."""

    broker_addr_table: dict[str, BrokerData] = always(dict)
    cluster_addr_table: dict[str, list[str]] = always(dict)


class MemberGroup(Body, frozen=True, kw_only=True):
    cluster: str = always(str)
    broker_name: str = always(str)
    broker_addrs: dict[int, str] = always(dict)


class MemberGroupAnswer(Body, frozen=True, kw_only=True):
    """GET_BROKER_MEMBER_GROUP 901."""

    broker_member_group: MemberGroup | None = None


class KvTable(Body, frozen=True, kw_only=True):
    """Texts by name: settings of a namespace (219, reply to 103), state of a broker (28)."""

    table: dict[str, str] = always(dict)


class RegistrationBody(Body, frozen=True, kw_only=True):
    """REGISTER_BROKER 103: all topics of a broker, or those that changed."""

    topic_config_serialize_wrapper: TopicTable = always(TopicTable)
    filter_server_list: list[str] = always(list)


# --- The forms of a registration ------------------------------------------------------------------------------

#: A broker with 100,000 topics needs about 5 MiB; a stream larger than this is not a registration.
_INFLATED_BYTES_MAX: Final = 64 * 1024 * 1024
#: Topics of a compressed registration; each takes about 2 µs on the name server's loop. The other form is limited by
#: the frame.
TOPICS_MAX: Final = 250_000
_VERSION_5_0_0: Final = 413
_INT: Final = struct.Struct(">i")
_ZLIB_FIRST: Final = 0x78


def crc_of(data: Buffer) -> int:
    """The checksum of a registration's body, as its header has it."""
    return zlib.crc32(data) & 0x7FFFFFFF


def encode_registration(registration: RegistrationBody, *, compressed: bool = False, version: int) -> bytes:
    """The body in either form; ``version`` is the version in the frame."""
    if not compressed:
        return encode(registration)
    table = registration.topic_config_serialize_wrapper
    topics = table.topic_config_table.values()
    parts = [_item(encode(table.data_version)), _INT.pack(len(topics)), *map(_item, map(_topic_line, topics))]
    parts.append(_item(msgspec.json.encode(registration.filter_server_list)))
    if version >= _VERSION_5_0_0:
        mappings = (table.topic_queue_mapping_info_map or {}).values()
        parts += [_INT.pack(len(mappings)), *map(_item, map(encode, mappings))]
    return zlib.compress(b"".join(parts))


def decode_registration(data: Buffer, *, version: int) -> RegistrationBody:
    """Reads both forms; raises ``RemoteProtocolError``."""
    view = memoryview(data)
    if not view or view[0] != _ZLIB_FIRST:
        return decode(view, RegistrationBody)
    items = _Items(_inflate(view))
    data_version = decode(items.item(), DataVersion)
    topics = [_read_topic_line(items.item()) for _ in items.counted()]
    filter_servers = _read_list(items.item())
    mappings = None
    if version >= _VERSION_5_0_0:
        mappings = {mapping.topic: mapping for mapping in (decode(items.item(), QueueMapping) for _ in items.counted())}
    table = TopicTable(
        data_version=data_version,
        topic_config_table={topic.topic_name: topic for topic in topics},
        topic_queue_mapping_info_map=mappings,
    )
    return RegistrationBody(topic_config_serialize_wrapper=table, filter_server_list=filter_servers)


def _item(data: bytes) -> bytes:
    return _INT.pack(len(data)) + data


def _topic_line(topic: TopicConfig) -> bytes:
    words = [topic.topic_name, topic.read_queue_nums, topic.write_queue_nums, topic.perm, topic.topic_filter_type]
    if topic.attributes:
        words.append(msgspec.json.encode(topic.attributes).decode())
    return " ".join(map(str, words)).encode()


def _read_topic_line(line: bytes) -> TopicConfig:
    try:
        name, read, write, perm, filter_type, *rest = line.decode().split(" ", 5)
        attributes = msgspec.json.decode(rest[0], type=dict[str, str]) if rest and rest[0] else None
        return TopicConfig(
            topic_name=name,
            read_queue_nums=int(read),
            write_queue_nums=int(write),
            perm=int(perm),
            topic_filter_type=filter_type,
            attributes=attributes,
        )
    except (ValueError, RecursionError):
        raise RemoteProtocolError(f"the registration has a topic that cannot be read: {line[:80]!r}") from None


def _read_list(data: bytes) -> list[str]:
    try:
        return msgspec.json.decode(data, type=list[str])
    except (ValueError, RecursionError) as error:
        raise RemoteProtocolError(f"the registration's filter servers cannot be read: {error}") from None


def _inflate(data: memoryview) -> bytes:
    stream = zlib.decompressobj()
    try:
        inflated = stream.decompress(data, _INFLATED_BYTES_MAX)
    except zlib.error as error:
        raise RemoteProtocolError(f"the registration cannot be decompressed: {error}") from None
    if not stream.eof:
        raise RemoteProtocolError("the registration's compressed body is cut short or too large")
    return inflated


class _Items:
    """Reads items one after the other."""

    __slots__ = ("_at", "_data")

    def __init__(self, data: bytes) -> None:
        self._data = data
        self._at = 0

    def item(self) -> bytes:
        length = self._int()
        self._at += length
        if length < 0 or self._at > len(self._data):
            raise RemoteProtocolError("the registration's compressed body is cut short")
        return self._data[self._at - length : self._at]

    def counted(self) -> range:
        # Each item needs four bytes at least, so reading with a wrong count stops at the end of the data.
        count = self._int()
        if count > TOPICS_MAX:
            raise RemoteProtocolError(f"the registration has {count} topics, more than the {TOPICS_MAX} that are read")
        return range(count)

    def _int(self) -> int:
        if self._at + 4 > len(self._data):
            raise RemoteProtocolError("the registration's compressed body is cut short")
        value: int = _INT.unpack_from(self._data, self._at)[0]
        self._at += 4
        return value
