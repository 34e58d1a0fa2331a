"""Messages as applications see them, and the names of the properties that travel with them.

A *message* is what users send and receive; a *record* (``wire.record``) is its form in the log.
Spec: E1, E6, C10.
"""

from __future__ import annotations

import enum
from dataclasses import dataclass, field
from typing import Final, NamedTuple


class Property:
    """Names of message properties with a meaning of their own (RocketMQ's ``MessageConst``)."""

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
    #: Ours: the offset id of the dead letter that a message is a copy of (H2).
    RESENT_FROM: Final = "TERN_RESENT_FROM"


#: Property names that the system owns; applications cannot set them through ``Message.properties``.
RESERVED_PROPERTIES: Final = frozenset(value for name, value in vars(Property).items() if not name.startswith("_"))

#: The MESSAGE_TYPE of the answer to a request (RocketMQ's ``MixAll.REPLY_MESSAGE_FLAG``).
REPLY_TYPE: Final = "reply"


class MessageQueue(NamedTuple):
    """One queue of a topic on one broker. Sorts by topic, broker name, queue id (as G1 needs)."""

    topic: str
    broker_name: str
    queue_id: int

    def __str__(self) -> str:
        return f"{self.topic}@{self.broker_name}:{self.queue_id}"


@dataclass(slots=True)
class Message:
    """A message to send.

    ``keys`` is one key or several, found again by ``tern``'s queries; ``tags`` is one tag, by which
    consumers choose. ``properties`` are free text for the application. ``delay_level`` 1…18 delays the
    delivery (0: at once); ``sharding_key`` sends all messages of one key to one queue, in order.
    """

    topic: str
    body: bytes
    tags: str = ""
    keys: str | tuple[str, ...] = ""
    properties: dict[str, str] = field(default_factory=dict)
    flag: int = 0
    delay_level: int = 0
    sharding_key: str = ""
    wait_store_ok: bool = True

    @property
    def keys_text(self) -> str:
        """The keys as one text, separated by blanks, as they are stored."""
        return self.keys if isinstance(self.keys, str) else " ".join(self.keys)


@dataclass(slots=True)
class ReceivedMessage:
    """A message as a consumer gets it: what was sent, and where and when it was stored.

    ``message_id`` is the producer's unique key where there is one, else ``offset_id``: the first stays the
    same through retries and copies, the second names one stored record.
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
        """Whether its sender waits for a reply (E7)."""
        return Property.REPLY_TO_CLIENT in self.properties and self.properties.get(Property.MESSAGE_TYPE) != REPLY_TYPE


class SendStatus(enum.Enum):
    """What the broker did with a message (E1). All four mean that it is stored on the broker asked."""

    OK = "SEND_OK"
    FLUSH_DISK_TIMEOUT = "FLUSH_DISK_TIMEOUT"
    FLUSH_SLAVE_TIMEOUT = "FLUSH_SLAVE_TIMEOUT"
    SLAVE_NOT_AVAILABLE = "SLAVE_NOT_AVAILABLE"


@dataclass(slots=True, frozen=True)
class SendReceipt:
    """The broker's answer to a send. For a batch both ids are joined by commas, the offset is the first's."""

    status: SendStatus
    message_id: str
    offset_id: str
    queue: MessageQueue
    queue_offset: int
    transaction_id: str = ""
    region: str = "DefaultRegion"
