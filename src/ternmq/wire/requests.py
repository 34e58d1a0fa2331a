"""The ext fields of each request code and of its reply, as typed headers (B1, D6, V1, V2).

One class per form: ``SendMessage`` is the header of code 10, ``SendReply`` that of its reply. This module has the calls
of clients, ``wire.requests_admin`` those of tools and servers. Attribute names are ours, names on the wire are
RocketMQ's: ``_wire_name`` maps them (camelCase, with a short list of exceptions); a field that differs in one code only
has its wire name beside it. The send codes 310, 320 and 325 abbreviate each name to a letter; their class has the same
attributes as that of 10 and 324, so one handler (``SendFields``) serves all five.

Types follow Java: a primitive is always sent and has its default here; an object may be missing and is ``… | None``;
a field that handlers need has no default, and a request without it is refused. Fields that this module does not
declare are ignored: ``bname``, ``ns``, ``nsd``, ``lo`` and ``oway`` of RocketMQ 5 (routing hints of its static topics
and namespaces), ``ReqT`` of its lite pull, the signature of ACL (read from the raw fields, before this).

Importing this module registers every class with ``wire.header``, so that requests arrive typed. Codes without fields
of their own (34 HEART_BEAT, 41 LOCK_BATCH_MQ, …) have no class; see ``wire.bodies`` for their bodies.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Annotated, Final, Protocol, TypeAlias

from msgspec import Meta, field

from ternmq.wire.codes import RequestCode as Code
from ternmq.wire.header import Fields, Header, HeaderT, register

#: Java's int and long. Larger numbers must not reach the store, because its records cannot hold them.
Int32: TypeAlias = Annotated[int, Meta(ge=-(2**31), le=2**31 - 1)]
Int64: TypeAlias = Annotated[int, Meta(ge=-(2**63), le=2**63 - 1)]
#: How long a popped message is hidden, up to ten years: the time when it ends must also be a Java long.
InvisibleMs: TypeAlias = Annotated[int, Meta(ge=0, le=10 * 365 * 24 * 3_600_000)]

#: Exceptions: names on the wire that are not ours in camelCase.
_WIRE_NAMES: Final = {
    "sysflag": "sysFlag",
    "topic_sysflag": "topicSysFlag",
    "group_sysflag": "groupSysFlag",
    "born_time_ms": "bornTimestamp",
    "store_time_ms": "storeTimestamp",
    "time_ms": "timestamp",
    "message_id": "msgId",
    "count_max": "maxMsgNums",
    "bytes_max": "maxMsgBytes",
    "suspend_timeout_ms": "suspendTimeoutMillis",
    "invisible_ms": "invisibleTime",
    "poll_ms": "pollTime",
    "pop_time_ms": "popTime",
    "revive_queue_id": "reviveQid",
}

#: The letters of SendMessageRequestHeaderV2.
_SEND_LETTERS: Final = {
    "producer_group": "a",
    "topic": "b",
    "default_topic": "c",
    "default_topic_queue_nums": "d",
    "queue_id": "e",
    "sysflag": "f",
    "born_time_ms": "g",
    "flag": "h",
    "properties": "i",
    "reconsume_times": "j",
    "unit_mode": "k",
    "max_reconsume_times": "l",
    "batch": "m",
    "broker_name": "n",
}


def _wire_name(name: str) -> str:
    first, *rest = name.split("_")
    return _WIRE_NAMES.get(name) or first + "".join(map(str.capitalize, rest))


class Call(Header, rename=_wire_name):
    """Base of all headers here; subclasses inherit the mapping of names."""


def carried_by(*codes: Code) -> Callable[[type[HeaderT]], type[HeaderT]]:
    """Make the decorated class the typed header of these request codes."""

    def register_all(kind: type[HeaderT]) -> type[HeaderT]:
        for code in codes:
            register(code, kind)
        return kind

    return register_all


# --- Sending (E1, E6, E7, H1, J1) -----------------------------------------------------------------------------


class SendFields(Protocol):
    """The fields that both forms of the send header have."""

    producer_group: str
    topic: str
    default_topic: str
    default_topic_queue_nums: Int32
    queue_id: Int32
    sysflag: Int32
    born_time_ms: Int64
    flag: Int32
    properties: str | None
    reconsume_times: Int32 | None
    unit_mode: bool
    batch: bool
    max_reconsume_times: Int32 | None
    broker_name: str | None


@carried_by(Code.SEND_MESSAGE, Code.SEND_REPLY_MESSAGE)
class SendMessage(Call, kw_only=True):
    """SEND_MESSAGE 10 and SEND_REPLY_MESSAGE 324: names in full, as the Go client sends them.

    ``queue_id`` below 0 lets the broker choose. ``batch`` says whether the body is a batch; the code does not.
    """

    producer_group: str = ""
    topic: str
    default_topic: str = "TBW102"
    default_topic_queue_nums: Int32 = 4
    queue_id: Int32
    sysflag: Int32 = 0
    born_time_ms: Int64 = 0
    flag: Int32 = 0
    properties: str | None = None
    reconsume_times: Int32 | None = None
    unit_mode: bool = False
    batch: bool = False
    max_reconsume_times: Int32 | None = None
    broker_name: str | None = field(default=None, name="bname")


@carried_by(Code.SEND_MESSAGE_V2, Code.SEND_BATCH_MESSAGE, Code.SEND_REPLY_MESSAGE_V2)
class SendMessageV2(Call, kw_only=True, rename=_SEND_LETTERS):
    """SEND_MESSAGE_V2 310, SEND_BATCH_MESSAGE 320, SEND_REPLY_MESSAGE_V2 325: the same with letters as names."""

    producer_group: str = ""
    topic: str
    default_topic: str = "TBW102"
    default_topic_queue_nums: Int32 = 4
    queue_id: Int32
    sysflag: Int32 = 0
    born_time_ms: Int64 = 0
    flag: Int32 = 0
    properties: str | None = None
    reconsume_times: Int32 | None = None
    unit_mode: bool = False
    batch: bool = False
    max_reconsume_times: Int32 | None = None
    broker_name: str | None = None


class SendReply(Call, kw_only=True):
    """Reply to every send. For a batch ``message_id`` has one offset id per message, joined by commas."""

    message_id: str
    queue_id: Int32
    queue_offset: Int64
    transaction_id: str | None = None
    batch_unique_id: str | None = field(default=None, name="batchUniqId")
    recall_handle: str | None = None
    region: str | None = field(default="DefaultRegion", name="MSG_REGION")
    trace_on: bool | None = field(default=True, name="TRACE_ON")


@carried_by(Code.PUSH_REPLY_MESSAGE_TO_CLIENT)
class PushReply(Call, kw_only=True):
    """PUSH_REPLY_MESSAGE_TO_CLIENT 326, to the client that waits for a reply (E7). Hosts are ``ip:port``."""

    producer_group: str
    topic: str
    default_topic: str = "TBW102"
    default_topic_queue_nums: Int32 = 4
    queue_id: Int32
    sysflag: Int32 = 0
    born_time_ms: Int64
    flag: Int32 = 0
    properties: str | None = None
    reconsume_times: Int32 | None = None
    unit_mode: bool = False
    max_reconsume_times: Int32 | None = None
    born_host: str
    store_host: str
    store_time_ms: Int64


@carried_by(Code.CONSUMER_SEND_MSG_BACK)
class SendBack(Call, kw_only=True):
    """CONSUMER_SEND_MSG_BACK 36: consume again later (H1). Level below 0: dead letter; 0: the broker chooses."""

    log_offset: Int64 = field(name="offset")
    group: str
    delay_level: Int32 = 0
    origin_message_id: str | None = field(default=None, name="originMsgId")
    origin_topic: str | None = None
    unit_mode: bool = False
    max_reconsume_times: Int32 | None = None


@carried_by(Code.END_TRANSACTION)
class EndTransaction(Call, kw_only=True):
    """END_TRANSACTION 37 (J1). ``decision`` is 8 commit, 12 rollback or 0 unknown; offsets are the half record's."""

    producer_group: str
    queue_offset: Int64 = field(name="tranStateTableOffset")
    log_offset: Int64 = field(name="commitLogOffset")
    decision: Int32 = field(name="commitOrRollback")
    from_check: bool = field(default=False, name="fromTransactionCheck")
    message_id: str | None = None
    transaction_id: str | None = None
    topic: str | None = None


@carried_by(Code.CHECK_TRANSACTION_STATE)
class CheckTransaction(Call, kw_only=True):
    """CHECK_TRANSACTION_STATE 39, to the producer; the half record is the body (J2)."""

    queue_offset: Int64 = field(name="tranStateTableOffset")
    log_offset: Int64 = field(name="commitLogOffset")
    message_id: str | None = None
    transaction_id: str | None = None
    offset_id: str | None = field(default=None, name="offsetMsgId")
    topic: str | None = None
    broker_name: str | None = field(default=None, name="bname")


@carried_by(Code.RECALL_MESSAGE)
class RecallMessage(Call, kw_only=True):
    """RECALL_MESSAGE 370 of RocketMQ 5.3: take back a delayed message."""

    producer_group: str | None = None
    topic: str
    recall_handle: str


class MessageIdReply(Call, kw_only=True):
    """To RECALL_MESSAGE."""

    message_id: str


# --- Pulling, offsets, queries (D4, F3, F8, L1) ---------------------------------------------------------------


class PullSysflag:
    """Bits of a pull's sysflag (RocketMQ's ``PullSysFlag``)."""

    COMMIT_OFFSET: Final = 1
    SUSPEND: Final = 2
    SUBSCRIPTION: Final = 4
    CLASS_FILTER: Final = 8
    LITE_PULL: Final = 16


@carried_by(Code.PULL_MESSAGE, Code.LITE_PULL_MESSAGE)
class PullMessage(Call, kw_only=True):
    """PULL_MESSAGE 11 and LITE_PULL_MESSAGE 361."""

    consumer_group: str
    topic: str
    queue_id: Int32
    queue_offset: Int64
    count_max: Int32
    sysflag: Int32 = 0
    commit_offset: Int64 = 0
    suspend_timeout_ms: Int64 = 0
    subscription: str | None = None
    sub_version: Int64 = 0
    expression_type: str | None = None
    bytes_max: Int32 | None = None
    request_source: Int32 | None = None
    # RocketMQ's spelling.
    proxy_client_id: str | None = field(default=None, name="proxyFrowardClientId")


class PullReply(Call, kw_only=True):
    """Reply to a pull with code 0, 19, 20 or 21; ``forbidden_type`` is set only with code 16."""

    suggested_broker_id: Int64 = field(name="suggestWhichBrokerId")
    next_offset: Int64 = field(name="nextBeginOffset")
    min_offset: Int64
    max_offset: Int64
    offset_delta: Int64 | None = None
    topic_sysflag: Int32 | None = None
    group_sysflag: Int32 | None = None
    forbidden_type: Int32 | None = None


@carried_by(Code.QUERY_CONSUMER_OFFSET)
class QueryOffset(Call, kw_only=True):
    """QUERY_CONSUMER_OFFSET 14."""

    consumer_group: str
    topic: str
    queue_id: Int32
    set_zero_if_not_found: bool | None = None


@carried_by(Code.UPDATE_CONSUMER_OFFSET)
class UpdateOffset(Call, kw_only=True):
    """UPDATE_CONSUMER_OFFSET 15, mostly one-way."""

    consumer_group: str
    topic: str
    queue_id: Int32
    commit_offset: Int64


@carried_by(Code.SEARCH_OFFSET_BY_TIMESTAMP)
class SearchOffset(Call, kw_only=True):
    """SEARCH_OFFSET_BY_TIMESTAMP 29. ``boundary_type`` is LOWER (default) or UPPER, in any case."""

    topic: str
    queue_id: Int32
    time_ms: Int64
    boundary_type: str | None = None


@carried_by(Code.GET_MAX_OFFSET, Code.GET_MIN_OFFSET, Code.GET_EARLIEST_MSG_STORETIME)
class QueueBounds(Call, kw_only=True):
    """GET_MAX_OFFSET 30, GET_MIN_OFFSET 31 and GET_EARLIEST_MSG_STORETIME 32."""

    topic: str
    queue_id: Int32
    committed: bool | None = None


class OffsetReply(Call, kw_only=True):
    """Reply to 14, 29, 30 and 31."""

    queue_offset: Int64 = field(name="offset")


class TimeReply(Call, kw_only=True):
    """To GET_EARLIEST_MSG_STORETIME."""

    time_ms: Int64


@carried_by(Code.VIEW_MESSAGE_BY_ID)
class ViewMessage(Call, kw_only=True):
    """VIEW_MESSAGE_BY_ID 33; the reply's body is the record."""

    log_offset: Int64 = field(name="offset")
    topic: str | None = None


@carried_by(Code.QUERY_MESSAGE)
class QueryMessage(Call, kw_only=True):
    """QUERY_MESSAGE 12: by key, or by unique id if the last field is set."""

    topic: str
    key: str
    count_max: Int32 = field(name="maxNum")
    begin_ms: Int64 = field(name="beginTimestamp")
    end_ms: Int64 = field(name="endTimestamp")
    by_unique_id: bool | None = field(default=None, name="_UNIQUE_KEY_QUERY")


class QueryReply(Call, kw_only=True):
    """Reply to QUERY_MESSAGE; the body has the records."""

    last_update_ms: Int64 = field(name="indexLastUpdateTimestamp")
    last_update_offset: Int64 = field(name="indexLastUpdatePhyoffset")


# --- Clients (D3, F6, F10) ------------------------------------------------------------------------------------


class HeartbeatReply(Call, kw_only=True):
    """Reply to HEART_BEAT 34, from RocketMQ 5. A broker that does not send these fields gets whole heartbeats."""

    supports_v2: bool | None = field(default=None, name="IS_SUPPORT_HEART_BEAT_V2")
    subscription_changed: bool | None = field(default=None, name="IS_SUB_CHANGE")


@carried_by(Code.UNREGISTER_CLIENT)
class UnregisterClient(Call, kw_only=True):
    """UNREGISTER_CLIENT 35, with one group or both."""

    client_id: str = field(name="clientID")
    producer_group: str | None = None
    consumer_group: str | None = None


@carried_by(Code.GET_CONSUMER_LIST_BY_GROUP, Code.NOTIFY_CONSUMER_IDS_CHANGED, Code.GET_CONSUMER_CONNECTION_LIST)
class ConsumerGroup(Call, kw_only=True):
    """GET_CONSUMER_LIST_BY_GROUP 38, NOTIFY_CONSUMER_IDS_CHANGED 40, GET_CONSUMER_CONNECTION_LIST 203."""

    consumer_group: str


@carried_by(Code.GET_PRODUCER_CONNECTION_LIST)
class ProducerGroup(Call, kw_only=True):
    """GET_PRODUCER_CONNECTION_LIST 204."""

    producer_group: str


@carried_by(Code.INVOKE_BROKER_TO_RESET_OFFSET, Code.RESET_CONSUMER_CLIENT_OFFSET)
class ResetOffset(Call, kw_only=True):
    """INVOKE_BROKER_TO_RESET_OFFSET 222, and RESET_CONSUMER_CLIENT_OFFSET 220 to each client (F6).

    ``time_ms`` -1 means the end of the queue; without ``force`` no offset is moved forward.
    """

    topic: str
    group: str
    time_ms: Int64
    force: bool = field(default=False, name="isForce")
    queue_id: Int32 | None = None
    queue_offset: Int64 | None = field(default=None, name="offset")


@carried_by(Code.GET_CONSUMER_STATUS_FROM_CLIENT, Code.INVOKE_BROKER_TO_GET_CONSUMER_STATUS)
class ConsumerStatus(Call, kw_only=True):
    """GET_CONSUMER_STATUS_FROM_CLIENT 221 and INVOKE_BROKER_TO_GET_CONSUMER_STATUS 223."""

    topic: str
    group: str
    client_address: str | None = field(default=None, name="clientAddr")


@carried_by(Code.GET_CONSUMER_RUNNING_INFO)
class RunningInfoQuery(Call, kw_only=True):
    """GET_CONSUMER_RUNNING_INFO 307; the broker forwards it to the client."""

    consumer_group: str
    client_id: str
    jstack_enable: bool = False


@carried_by(Code.CONSUME_MESSAGE_DIRECTLY)
class ConsumeDirectly(Call, kw_only=True):
    """CONSUME_MESSAGE_DIRECTLY 309; the broker adds its name and the record before it forwards the request."""

    consumer_group: str
    client_id: str | None = None
    message_id: str | None = None
    broker_name: str | None = None
    topic: str | None = None
    topic_sysflag: Int32 | None = None
    group_sysflag: Int32 | None = None


# --- Pop, RocketMQ 5 (F9) -------------------------------------------------------------------------------------


@carried_by(Code.POP_MESSAGE)
class PopMessage(Call, kw_only=True):
    """POP_MESSAGE 200050. Queue -1 means all; ``init_mode`` is 0 from the first message, 1 from the last."""

    consumer_group: str
    topic: str
    queue_id: Int32
    count_max: Int32
    invisible_ms: InvisibleMs
    poll_ms: Int64 = 0
    # The client's clock.
    born_time_ms: Int64 = field(default=0, name="bornTime")
    init_mode: Int32 = 0
    expression_type: str | None = field(default=None, name="expType")
    subscription: str | None = field(default=None, name="exp")
    order: bool | None = None
    attempt_id: str | None = None


class PopReply(Call, kw_only=True):
    """Reply to POP_MESSAGE and PEEK_MESSAGE; the numbers are also set with POLLING_FULL and POLLING_TIMEOUT."""

    pop_time_ms: Int64
    invisible_ms: Int64
    revive_queue_id: Int32
    rest_count: Int64 = field(default=0, name="restNum")
    start_offset_info: str | None = None
    msg_offset_info: str | None = None
    order_count_info: str | None = None


@carried_by(Code.ACK_MESSAGE)
class AckMessage(Call, kw_only=True):
    """ACK_MESSAGE 200051. ``extra_info`` is the handle (property POP_CK) of the message."""

    consumer_group: str
    topic: str
    queue_id: Int32
    extra_info: str
    queue_offset: Int64 = field(name="offset")


@carried_by(Code.CHANGE_MESSAGE_INVISIBLETIME)
class ChangeInvisibleTime(Call, kw_only=True):
    """CHANGE_MESSAGE_INVISIBLETIME 200053."""

    consumer_group: str
    topic: str
    queue_id: Int32
    extra_info: str
    queue_offset: Int64 = field(name="offset")
    invisible_ms: InvisibleMs


class ChangeInvisibleTimeReply(Call, kw_only=True):
    """Reply to 200053: the parts of the new handle."""

    pop_time_ms: Int64
    invisible_ms: Int64
    revive_queue_id: Int32


#: Ext fields of error replies, by request code. Java's client reads the header of this one before it checks the code,
#: and treats a reply without these fields as invalid. (For other codes it reads the header only if there is one.)
ERROR_FIELDS: Final[dict[int, Fields]] = {
    Code.CHANGE_MESSAGE_INVISIBLETIME: ChangeInvisibleTimeReply(
        pop_time_ms=0, invisible_ms=0, revive_queue_id=0
    ).to_fields()
}


@carried_by(Code.NOTIFICATION)
class Notification(Call, kw_only=True):
    """NOTIFICATION 200054: are there messages to pop?"""

    consumer_group: str
    topic: str
    queue_id: Int32
    poll_ms: Int64 = 0
    born_time_ms: Int64 = field(default=0, name="bornTime")
    order: bool | None = None
    attempt_id: str | None = None


class NotificationReply(Call, kw_only=True):
    """To NOTIFICATION."""

    has_message: bool = field(name="hasMsg")
    polling_full: bool | None = None


@carried_by(Code.PEEK_MESSAGE)
class PeekMessage(Call, kw_only=True):
    """PEEK_MESSAGE 200052."""

    consumer_group: str
    topic: str
    queue_id: Int32
    count_max: Int32


@carried_by(Code.POLLING_INFO)
class PollingInfo(Call, kw_only=True):
    """POLLING_INFO 200055."""

    consumer_group: str
    topic: str
    queue_id: Int32


class PollingInfoReply(Call, kw_only=True):
    """To POLLING_INFO."""

    polling_count: Int32 = field(name="pollingNum")
