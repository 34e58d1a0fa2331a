"""Bodies that clients send, and requests that brokers send to clients (D3, F2, F5, F6, F9, F10, G1).

Enum values are sent by name. An unknown name is read as RocketMQ's default, so that one member with an unknown value
does not invalidate a whole heartbeat.
"""

from __future__ import annotations

import enum
from collections.abc import Mapping
from typing import ClassVar

from msgspec import field

from ternmq.message import MessageQueue
from ternmq.wire.bodies.codec import Body, Queue, QueueKey, always, queue_key

# --- The heartbeat --------------------------------------------------------------------------------------------


class ConsumeType(enum.StrEnum):
    ACTIVELY = "CONSUME_ACTIVELY"
    PASSIVELY = "CONSUME_PASSIVELY"
    POP = "CONSUME_POP"

    @classmethod
    def _missing_(cls, _value: object) -> ConsumeType:
        return cls.PASSIVELY


class MessageModel(enum.StrEnum):
    """Whether the members of a group share the messages (CLUSTERING) or each gets all of them."""

    BROADCASTING = "BROADCASTING"
    CLUSTERING = "CLUSTERING"

    @classmethod
    def _missing_(cls, _value: object) -> MessageModel:
        return cls.CLUSTERING


class ConsumeFromWhere(enum.StrEnum):
    LAST_OFFSET = "CONSUME_FROM_LAST_OFFSET"
    LAST_OFFSET_AND_FROM_MIN_WHEN_BOOT_FIRST = "CONSUME_FROM_LAST_OFFSET_AND_FROM_MIN_WHEN_BOOT_FIRST"
    MIN_OFFSET = "CONSUME_FROM_MIN_OFFSET"
    MAX_OFFSET = "CONSUME_FROM_MAX_OFFSET"
    FIRST_OFFSET = "CONSUME_FROM_FIRST_OFFSET"
    TIMESTAMP = "CONSUME_FROM_TIMESTAMP"

    @classmethod
    def _missing_(cls, _value: object) -> ConsumeFromWhere:
        return cls.LAST_OFFSET


class RequestMode(enum.StrEnum):
    """How a consumer gets its messages; POP is RocketMQ 5's."""

    PULL = "PULL"
    POP = "POP"

    @classmethod
    def _missing_(cls, _value: object) -> RequestMode:
        return cls.PULL


class SubscriptionData(Body, frozen=True, kw_only=True):
    """The subscription of a group to a topic. ``code_set`` has the hash of each tag; ``sub_version`` grows on changes.

    ``expression_type`` is TAG or SQL92; the Node client leaves it out for tags.
    """

    topic: str
    sub_string: str = always(lambda: "*")
    tags_set: list[str] = always(list)
    code_set: list[int] = always(list)
    sub_version: int = always(int)
    expression_type: str = always(lambda: "TAG")
    class_filter_mode: bool = always(bool)


class ProducerData(Body, frozen=True, kw_only=True):
    group_name: str


class ConsumerData(Body, frozen=True, kw_only=True):
    group_name: str
    consume_type: ConsumeType = always(lambda: ConsumeType.PASSIVELY)
    message_model: MessageModel = always(lambda: MessageModel.CLUSTERING)
    consume_from_where: ConsumeFromWhere = always(lambda: ConsumeFromWhere.LAST_OFFSET)
    subscription_data_set: list[SubscriptionData] = always(list)
    unit_mode: bool = always(bool)


class Heartbeat(Body, frozen=True, kw_only=True):
    """HEART_BEAT 34. The last two are RocketMQ 5's: "my subscriptions are still those with this fingerprint"."""

    bytes_max: ClassVar[int] = 2 << 20

    client_id: str = field(name="clientID")
    producer_data_set: list[ProducerData] = always(list)
    consumer_data_set: list[ConsumerData] = always(list)
    heartbeat_fingerprint: int | None = None
    without_sub: bool | None = None


class ClientCheck(Body, frozen=True, kw_only=True):
    """CHECK_CLIENT_CONFIG 46: is this SQL filter valid?"""

    bytes_max: ClassVar[int] = 2 << 20

    client_id: str
    group: str
    subscription_data: SubscriptionData
    namespace: str | None = None


class MemberList(Body, frozen=True, kw_only=True):
    """GET_CONSUMER_LIST_BY_GROUP 38: the client ids of a group."""

    consumer_id_list: list[str] = always(list)


# --- Queues: locks, assignments, offsets ----------------------------------------------------------------------


class QueueLocks(Body, frozen=True, kw_only=True):
    """LOCK_BATCH_MQ 41 and UNLOCK_BATCH_MQ 42."""

    bytes_max: ClassVar[int] = 4 << 20

    client_id: str
    consumer_group: str
    queues: list[Queue] = field(name="mqSet")
    only_this_broker: bool | None = None


class LockedQueues(Body, frozen=True, kw_only=True):
    """Reply to LOCK_BATCH_MQ: the queues that the client has locked now."""

    queues: list[Queue] = always(list, name="lockOKMQSet")


class AssignmentQuery(Body, frozen=True, kw_only=True):
    """QUERY_ASSIGNMENT 400: which queues does this client get? Strategies: AVG, AVG_BY_CIRCLE, CONSISTENT_HASH, …"""

    bytes_max: ClassVar[int] = 1 << 20

    client_id: str
    consumer_group: str
    topic: str
    strategy_name: str = always(lambda: "AVG")
    message_model: MessageModel = always(lambda: MessageModel.CLUSTERING)


class QueueAssignment(Body, frozen=True, kw_only=True):
    """Queue id -1 stands for all queues of that broker."""

    message_queue: Queue
    mode: RequestMode = always(lambda: RequestMode.PULL)


class Assignments(Body, frozen=True, kw_only=True):
    """Reply to QUERY_ASSIGNMENT. None means "keep your queues", an empty list "you have no queues"."""

    message_queue_assignments: list[QueueAssignment] | None = None


class GroupRequestMode(Body, frozen=True, kw_only=True):
    """SET_MESSAGE_REQUEST_MODE 401."""

    bytes_max: ClassVar[int] = 1 << 20

    topic: str
    consumer_group: str
    mode: RequestMode = always(lambda: RequestMode.PULL)
    pop_share_queue_num: int = always(int)


class RequestModes(Body, frozen=True, kw_only=True):
    """GET_ALL_MESSAGE_REQUEST_MODE 402: by topic, then by group."""

    message_request_mode_map: dict[str, dict[str, GroupRequestMode]] = always(dict)
    #: As in ``TopicTable``.
    changes_included: int | None = None


class QueueOffsets(Body, frozen=True, kw_only=True):
    """RESET_CONSUMER_CLIENT_OFFSET 220 and reply to INVOKE_BROKER_TO_RESET_OFFSET 222."""

    offset_table: dict[QueueKey, int] = always(dict)


def encode_reset(offsets: Mapping[MessageQueue, int]) -> bytes:
    """The body of 220 as Java writes it: queues as bare keys, no blanks.

    It is the only body that must not be valid JSON: the Go client would read valid JSON as a list of pairs, and crash.
    """
    pairs = ",".join(f"{queue_key(queue)}:{queue_offset}" for queue, queue_offset in offsets.items())
    return f'{{"offsetTable":{{{pairs}}}}}'.encode()


class ClientOffsets(Body, frozen=True, kw_only=True):
    """Reply to GET_CONSUMER_STATUS_FROM_CLIENT 221."""

    message_queue_table: dict[QueueKey, int] = always(dict)


class GroupOffsets(Body, frozen=True, kw_only=True):
    """Reply to INVOKE_BROKER_TO_GET_CONSUMER_STATUS 223: the same for each client."""

    consumer_table: dict[str, dict[QueueKey, int]] = always(dict)


class BatchAck(Body, frozen=True, kw_only=True):
    """Part of ``BatchAcks``. ``bits`` is base64; bit n (little-endian) stands for queue offset start + n."""

    consumer_group: str = field(name="c")
    topic: str = field(name="t")
    retry: str = always(lambda: "0", name="r")
    start_offset: int = field(name="so")
    queue_id: int = field(name="q")
    revive_queue_id: int = field(name="rq")
    pop_time_ms: int = field(name="pt")
    invisible_ms: int = field(name="it")
    bits: str = field(name="b")


class BatchAcks(Body, frozen=True, kw_only=True):
    """BATCH_ACK_MESSAGE 200151."""

    bytes_max: ClassVar[int] = 1 << 20

    broker_name: str | None = None
    acks: list[BatchAck] = always(list)


# --- Requests of a broker to its clients ----------------------------------------------------------------------


class ProcessQueueInfo(Body, frozen=True, kw_only=True):
    """The state of one queue in a consumer; ``droped`` is spelt so on the wire."""

    commit_offset: int = always(int)
    cached_msg_min_offset: int = always(int)
    cached_msg_max_offset: int = always(int)
    cached_msg_count: int = always(int)
    cached_msg_size_in_mib: int = always(int, name="cachedMsgSizeInMiB")
    transaction_msg_min_offset: int = always(int)
    transaction_msg_max_offset: int = always(int)
    transaction_msg_count: int = always(int)
    locked: bool = always(bool)
    try_unlock_times: int = always(int)
    last_lock_timestamp: int = always(int)
    dropped: bool = always(bool, name="droped")
    last_pull_timestamp: int = always(int)
    last_consume_timestamp: int = always(int)


class PopQueueInfo(Body, frozen=True, kw_only=True):
    wait_ack_count: int = always(int)
    dropped: bool = always(bool, name="droped")
    last_pop_timestamp: int = always(int)


class ConsumeStatus(Body, frozen=True, kw_only=True):
    """How fast a topic is consumed."""

    pull_rt: float = always(float, name="pullRT")
    pull_tps: float = always(float, name="pullTPS")
    consume_rt: float = always(float, name="consumeRT")
    consume_ok_tps: float = always(float, name="consumeOKTPS")
    consume_failed_tps: float = always(float, name="consumeFailedTPS")
    consume_failed_msgs: int = always(int)


class RunningInfo(Body, frozen=True, kw_only=True):
    """GET_CONSUMER_RUNNING_INFO 307. ``properties`` has PROP_CONSUME_TYPE, PROP_CLIENT_VERSION, …"""

    properties: dict[str, str] = always(dict)
    subscription_set: list[SubscriptionData] = always(list)
    mq_table: dict[QueueKey, ProcessQueueInfo] = always(dict)
    mq_pop_table: dict[QueueKey, PopQueueInfo] = always(dict)
    status_table: dict[str, ConsumeStatus] = always(dict)
    user_consumer_info: dict[str, str] = always(dict)
    jstack: str | None = None


class DirectResult(enum.StrEnum):
    """In the order of RocketMQ's ``CMResult``: the Go client sends the index instead of the name."""

    SUCCESS = "CR_SUCCESS"
    LATER = "CR_LATER"
    ROLLBACK = "CR_ROLLBACK"
    COMMIT = "CR_COMMIT"
    THROW_EXCEPTION = "CR_THROW_EXCEPTION"
    RETURN_NULL = "CR_RETURN_NULL"

    @classmethod
    def _missing_(cls, _value: object) -> DirectResult:
        return cls.LATER


class ConsumedDirectly(Body, frozen=True, kw_only=True):
    """CONSUME_MESSAGE_DIRECTLY 309; ``result`` accepts a name or an index."""

    consume_result: DirectResult | int = always(lambda: DirectResult.SUCCESS)
    order: bool = always(bool)
    auto_commit: bool = always(lambda: True)
    remark: str | None = None
    spent_ms: int = always(int, name="spentTimeMills")

    @property
    def result(self) -> DirectResult:
        value = self.consume_result
        if isinstance(value, DirectResult):
            return value
        names = list(DirectResult)
        return names[value] if 0 <= value < len(names) else DirectResult.LATER


# --- What a broker reports about its clients ------------------------------------------------------------------


class ConnectionInfo(Body, frozen=True, kw_only=True):
    """``subscription_data_set`` is TernMQ's own: the subscriptions of this member, if the members of a group differ."""

    client_id: str
    client_addr: str = always(str)
    language: str = always(lambda: "OTHER")
    version: int = always(int)
    subscription_data_set: list[SubscriptionData] | None = None


class ConsumerConnection(Body, frozen=True, kw_only=True):
    """GET_CONSUMER_CONNECTION_LIST 203."""

    connection_set: list[ConnectionInfo] = always(list)
    subscription_table: dict[str, SubscriptionData] = always(dict)
    consume_type: ConsumeType = always(lambda: ConsumeType.PASSIVELY)
    message_model: MessageModel = always(lambda: MessageModel.CLUSTERING)
    consume_from_where: ConsumeFromWhere = always(lambda: ConsumeFromWhere.LAST_OFFSET)


class ProducerConnection(Body, frozen=True, kw_only=True):
    """GET_PRODUCER_CONNECTION_LIST 204."""

    connection_set: list[ConnectionInfo] = always(list)


class ProducerInfo(Body, frozen=True, kw_only=True):
    client_id: str
    remote_ip: str = always(str, name="remoteIP")
    language: str = always(lambda: "OTHER")
    version: int = always(int)
    last_update_timestamp: int = always(int)


class ProducerTable(Body, frozen=True, kw_only=True):
    """GET_ALL_PRODUCER_INFO 328: by group."""

    data: dict[str, list[ProducerInfo]] = always(dict)


class GroupSubscription(Body, frozen=True, kw_only=True):
    """QUERY_SUBSCRIPTION_BY_CONSUMER 345."""

    group: str
    topic: str
    subscription_data: SubscriptionData | None = None
