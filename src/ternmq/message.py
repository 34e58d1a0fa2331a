"""Messages as applications see them, and the names of their properties.

A *message* is what users send and receive; a *record* (``wire.record``) is its form in the log.
Spec: E1, E6, C10.

``Message`` and ``SendReceipt`` are structs that the garbage collector does not visit: programs make thousands of them a
second, and neither can be part of a cycle as long as properties are texts. As a dataclass a message took three times as
long to make, and a quarter of the time of ``send_batch`` went to the collector.
"""

from __future__ import annotations

import enum
from dataclasses import Field, dataclass, field, make_dataclass
from datetime import datetime, timedelta
from functools import cache
from typing import Any, ClassVar, Final, NamedTuple, cast

import msgspec
from msgspec.structs import FieldInfo
from msgspec.structs import fields as struct_fields


class Property:
    """Names of message properties with a special meaning (RocketMQ's ``MessageConst``)."""

    KEYS: Final = "KEYS"
    TAGS: Final = "TAGS"
    WAIT: Final = "WAIT"
    DELAY: Final = "DELAY"
    RETRY_TOPIC: Final = "RETRY_TOPIC"
    REAL_TOPIC: Final = "REAL_TOPIC"
    REAL_QUEUE_ID: Final = "REAL_QID"
    TRANSACTION: Final = "TRAN_MSG"
    PRODUCER_GROUP: Final = "PGROUP"
    MIN_OFFSET: Final = "MIN_OFFSET"
    MAX_OFFSET: Final = "MAX_OFFSET"
    ORIGIN_MESSAGE_ID: Final = "ORIGIN_MESSAGE_ID"
    RECONSUME_TIME: Final = "RECONSUME_TIME"
    MAX_RECONSUME_TIMES: Final = "MAX_RECONSUME_TIMES"
    REGION: Final = "MSG_REGION"
    TRACE_ON: Final = "TRACE_ON"
    UNIQUE_KEY: Final = "UNIQ_KEY"
    CONSUME_START_TIME: Final = "CONSUME_START_TIME"
    INSTANCE_ID: Final = "INSTANCE_ID"
    CORRELATION_ID: Final = "CORRELATION_ID"
    REPLY_TO_CLIENT: Final = "REPLY_TO_CLIENT"
    TTL: Final = "TTL"
    ARRIVE_TIME: Final = "ARRIVE_TIME"
    CLUSTER: Final = "CLUSTER"
    MESSAGE_TYPE: Final = "MSG_TYPE"
    POP_CHECKPOINT: Final = "POP_CK"
    FIRST_POP_TIME: Final = "1ST_POP_TIME"
    SHARDING_KEY: Final = "__SHARDINGKEY"
    TIMER_DELAY_SEC: Final = "TIMER_DELAY_SEC"
    TIMER_DELAY_MS: Final = "TIMER_DELAY_MS"
    TIMER_DELIVER_MS: Final = "TIMER_DELIVER_MS"
    START_DELIVER_TIME: Final = "__STARTDELIVERTIME"
    #: The second in which a message with a delivery time waits. It stays when the message is delivered, and says that
    #: what asks for the time has been done.
    TIMER_OUT_MS: Final = "TIMER_OUT_MS"
    TIMER_ENQUEUE_MS: Final = "TIMER_ENQUEUE_MS"
    TIMER_DEQUEUE_MS: Final = "TIMER_DEQUEUE_MS"
    TIMER_ROLL_TIMES: Final = "TIMER_ROLL_TIMES"
    #: The unique key of the message that this one takes back before its time.
    TIMER_DELETE_KEY: Final = "TIMER_DEL_UNIQKEY"
    TRANSACTION_ID: Final = "__transactionId__"
    TRANSACTION_CHECK_TIMES: Final = "TRANSACTION_CHECK_TIMES"
    TRANSACTION_PREPARED_OFFSET: Final = "TRAN_PREPARED_QUEUE_OFFSET"
    CHECK_IMMUNITY_TIME: Final = "CHECK_IMMUNITY_TIME_IN_SECONDS"
    #: Ours: when the half of a transaction began to wait for a producer, if it was moved since (J2).
    TRANSACTION_WAITS_SINCE: Final = "TERN_WAITS_SINCE"
    #: Ours: the offset id of the dead letter that a message is a copy of (H2).
    RESENT_FROM: Final = "TERN_RESENT_FROM"
    #: TernMQ's own: the error of the damaged record that was sent back as a whole, as this message (H1).
    BODY_ERROR: Final = "TERN_BODY_ERROR"


#: Property names that the system owns; applications cannot set them through ``Message.properties``.
RESERVED_PROPERTIES: Final = frozenset(value for name, value in vars(Property).items() if not name.startswith("_"))

#: Ask for delivery at any time (I2): RocketMQ 5's timer, and the first one of its commercial version. The first of
#: these that a message has counts.
TIMER_PROPERTIES: Final = (
    Property.TIMER_DELAY_SEC,
    Property.TIMER_DELAY_MS,
    Property.TIMER_DELIVER_MS,
    Property.START_DELIVER_TIME,
)

#: The MESSAGE_TYPE of the answer to a request (RocketMQ's ``MixAll.REPLY_MESSAGE_FLAG``).
REPLY_TYPE: Final = "reply"


class Outcome(enum.IntEnum):
    """How a transaction ended, as a checker says it.

    ``UNKNOWN`` means «not yet, or it cannot be told now»: the broker asks again.
    """

    # The bits of the sysflag, which is what the protocol carries.
    UNKNOWN = 0
    COMMIT = 8
    ROLLBACK = 12


class MessageQueue(NamedTuple):
    """One queue of a topic on one broker. Queues sort by topic, broker name and queue id.

    Args:
        topic: Name of the topic.
        broker_name: Name of the broker.
        queue_id: Number of the queue on that broker, from 0 on.
    """

    topic: str
    broker_name: str
    queue_id: int

    def __str__(self) -> str:
        return f"{self.topic}@{self.broker_name}:{self.queue_id}"


class Message(msgspec.Struct, gc=False):
    """A message to send.

    Args:
        topic: Name of the topic.
        body: The content, of at least one byte.
        tags: One tag, by which consumers can filter.
        keys: One key or several, by which the message can be found again.
        properties: Further names and values of the application.
        flag: A number for the application; brokers do not use it.
        delay_level: 1 to 18 delays the delivery, by 1 s to 2 h if the broker has the default levels. 0: no delay.
        sharding_key: All messages with the same key go to the same queue, in order.
        wait_store_ok: Whether the broker answers only when the message is on disk and replicated, as it is configured
            to.
        deliver_at: When consumers get it: a ``datetime`` with a time zone. A time in the past is now. Brokers accept up
            to 40 days ahead by default.
        delay: The same as a duration, which the broker counts from when it gets the message: the clock of this machine
            does not matter. Only one of ``delay_level``, ``deliver_at`` and ``delay`` can be given.
    """

    __dataclass_fields__: ClassVar[dict[str, Field[Any]]]
    __dataclass_params__: ClassVar[Any]

    topic: str
    body: bytes
    tags: str = ""
    keys: str | tuple[str, ...] = ""
    properties: dict[str, str] = {}
    flag: int = 0
    delay_level: int = 0
    sharding_key: str = ""
    wait_store_ok: bool = True
    deliver_at: datetime | None = None
    delay: timedelta | None = None

    @property
    def is_delayed(self) -> bool:
        """Whether it asks to be delivered later, in any of the three ways."""
        return bool(self.delay_level) or self.deliver_at is not None or self.delay is not None

    @property
    def keys_text(self) -> str:
        """The keys as one text, separated by blanks, as they are stored."""
        return self.keys if isinstance(self.keys, str) else " ".join(self.keys)


class _OfDataclass:
    """What the functions of ``dataclasses`` look for: programs copy messages with ``replace``, as ``Message`` was once
    a dataclass. Subclasses have their own."""

    def __init__(self, name: str) -> None:
        self._name = name

    def __get__(self, _message: Message | None, owner: type[Message]) -> Any:
        return getattr(_dataclass_like(owner), self._name)


@cache
def _dataclass_like(owner: type[Message]) -> type:
    """A dataclass with the fields of a struct."""
    return make_dataclass(owner.__name__, [(one.name, one.type, _field_like(one)) for one in struct_fields(owner)])


def _field_like(one: FieldInfo) -> Any:
    if one.default_factory is not msgspec.NODEFAULT:
        return field(default_factory=one.default_factory)
    return field() if one.default is msgspec.NODEFAULT else field(default=one.default)


Message.__dataclass_fields__ = cast("dict[str, Field[Any]]", _OfDataclass("__dataclass_fields__"))
Message.__dataclass_params__ = _OfDataclass("__dataclass_params__")


@dataclass(slots=True)
class ReceivedMessage:
    """A message as a consumer gets it: what was sent, and where and when it was stored.

    Attributes:
        topic: Name of the topic.
        body: The content.
        properties: Names and values, those of the system included.
        broker_name: Name of the broker that stores the message.
        queue_id: Number of the queue on that broker.
        queue_offset: Position in the queue.
        log_offset: Position in the broker's log, in bytes.
        message_id: The unique id that the producer gave; it stays the same through retries and copies. ``offset_id`` if
            there is none.
        offset_id: The id of this stored record: address of the broker and position in its log.
        born_time_ms: When it was sent, in ms since 1970.
        born_host: Address of the client that sent it.
        store_time_ms: When it was stored, in ms since 1970.
        store_host: Address of the broker that stored it.
        reconsume_times: How often it was delivered again.
        flag: The number that the application gave.
        sysflag: Flags of the record: compression, transaction, kind of addresses.
        store_bytes: Size of the record in the log.
        prepared_transaction_offset: Position in the log of the first part of its transaction; 0 without one.
        min_offset: The first offset of the queue when the message was fetched; -1 if not known (pop, replies, queries).
        max_offset: The offset that the next message of the queue will get; -1 if not known.
        consume_start_time_ms: When the application got it, in ms since 1970; 0 before.
        body_error: Why the body cannot be read; ``body`` is then as stored, still compressed or damaged. Empty: it can
            be read. Listeners and loops of push and pop consumers never get an unreadable message.
    """

    topic: str
    body: bytes
    properties: dict[str, str]
    broker_name: str
    queue_id: int
    queue_offset: int
    log_offset: int
    message_id: str
    offset_id: str
    born_time_ms: int
    born_host: str
    store_time_ms: int
    store_host: str
    reconsume_times: int
    flag: int
    sysflag: int
    store_bytes: int
    prepared_transaction_offset: int = 0
    min_offset: int = -1
    max_offset: int = -1
    consume_start_time_ms: int = 0
    body_error: str = ""

    @property
    def tags(self) -> str:
        return self.properties.get(Property.TAGS, "")

    @property
    def keys(self) -> tuple[str, ...]:
        return tuple(self.properties.get(Property.KEYS, "").split())

    @property
    def queue(self) -> MessageQueue:
        return MessageQueue(self.topic, self.broker_name, self.queue_id)

    @property
    def is_request(self) -> bool:
        """Whether its sender waits for a reply."""
        return Property.REPLY_TO_CLIENT in self.properties and self.properties.get(Property.MESSAGE_TYPE) != REPLY_TYPE


class SendStatus(enum.Enum):
    """What the broker did with a message. All four mean that it is stored on this broker.

    - ``OK``: as safely as the broker is configured to.
    - ``FLUSH_DISK_TIMEOUT``: it was not on disk in time.
    - ``FLUSH_SLAVE_TIMEOUT``: it was not replicated in time.
    - ``SLAVE_NOT_AVAILABLE``: there is no slave to replicate it to.
    """

    OK = "SEND_OK"
    FLUSH_DISK_TIMEOUT = "FLUSH_DISK_TIMEOUT"
    FLUSH_SLAVE_TIMEOUT = "FLUSH_SLAVE_TIMEOUT"
    SLAVE_NOT_AVAILABLE = "SLAVE_NOT_AVAILABLE"


class SendReceipt(msgspec.Struct, frozen=True, gc=False):
    """The broker's answer to a send.

    Attributes:
        status: What the broker did with the message.
        message_id: The unique id that the producer gave to the message.
        offset_id: The id of the stored record: address of the broker and position in its log.
        queue: The queue that the message was stored in.
        queue_offset: Its position in the queue.
        transaction_id: The id of its transaction; empty without one.
        region: The region that the broker is configured for.
        recall_handle: Takes a message with a delivery time back before that time: ``Producer.recall``. Empty without
            such a time, and from brokers that cannot do it (RocketMQ before 5.3).
        trace_on: Whether the broker wants traces of its messages.
    """

    status: SendStatus
    message_id: str
    offset_id: str
    queue: MessageQueue
    queue_offset: int
    transaction_id: str = ""
    region: str = "DefaultRegion"
    recall_handle: str = ""
    trace_on: bool = True
