"""Settings of a broker. Names are RocketMQ's in snake_case (``brokerIP1`` is ``broker_ip1``), so its configuration
files work as they are (T2); those of the store are in ``store.config``. Times are in milliseconds, as RocketMQ's are,
also where the name does not say so.
"""

from __future__ import annotations

import re
import socket
from dataclasses import dataclass, field
from typing import Final

from ternmq.auth.config import UserAccessConfig
from ternmq.config import check_factories, rocketmq_name
from ternmq.errors import ConfigError
from ternmq.wire.bodies.clients import RequestMode

#: Bits of a permission: of a broker, and of a topic (D1).
READ: Final = 4
WRITE: Final = 2
INHERIT: Final = 1

# Looser than the rule for topics: a host's name may have dots. ``:`` and ``;`` separate broker names in the
# configuration of ordered topics, a blank separates fields of message handles. The machine-room strategies of consumers
# want ``room@broker`` (G1).
_BROKER_NAME: Final = re.compile(r"[a-zA-Z0-9._@-]{1,127}\Z")
#: Messages have 32 KiB for all their properties.
_REGION_BYTES_MAX: Final = 255
_CLUSTER_NAME: Final = re.compile(r"[a-zA-Z0-9._-]{1,127}\Z")


@dataclass(slots=True, frozen=True)
class BrokerConfig(UserAccessConfig):
    """One broker. Raises ``ConfigError`` that names the setting and what it may be.

    Who may call it, and the bounds of its connections, are in ``UserAccessConfig``.
    """

    #: Masters and slaves of one log share a name; clients see it in their queues.
    broker_name: str = field(default_factory=socket.gethostname)
    broker_cluster_name: str = "DefaultCluster"
    #: 0 is the master.
    broker_id: int = 0
    #: The address that clients dial and that message ids carry (C10). Empty: the one this machine uses to reach its
    #: name server, or 127.0.0.1 without one.
    broker_ip1: str = ""
    bind_address: str = "0.0.0.0"  # noqa: S104 - brokers serve the network; bind_address narrows it
    #: 0 takes any free port, and no VIP port.
    listen_port: int = 10911
    #: Messages and probes over HTTP (R5); 0: off. Needs ``pip install ternmq[http]``.
    http_port: int = 0
    #: ``host:port;host:port``, or the URL of an address server that lists them. Empty: a broker on its own, ready at
    #: once.
    namesrv_addr: str = ""

    # --- Topics and groups (D1, D2) ---------------------------------------------------------------------------

    auto_create_topic_enable: bool = True
    auto_create_subscription_group: bool = True
    #: Topics and groups up to which sends and heartbeats create more, so that clients which invent names cannot fill
    #: the tables; administrators may create any number. Topics for retries and dead letters count apart from others.
    auto_create_topic_max: int = 10_000
    auto_create_subscription_group_max: int = 10_000
    #: Upper bound of the queues of an auto-created topic; the producer asks for 4.
    default_topic_queue_nums: int = 8
    #: 4 read, 2 write; 6 is both, 4 drains a broker before maintenance, 0 takes it out.
    broker_permission: int = READ | WRITE
    #: Makes the trace topic a system topic, at start.
    trace_topic_enable: bool = False
    msg_trace_topic_name: str = "RMQ_SYS_TRACE_TOPIC"

    # --- Consumers (D3, D4, E8, F8) ---------------------------------------------------------------------------

    #: Objects that hear what goes out to groups: ``module:factory``, separated by commas (``broker.hooks``).
    consume_hooks: str = ""
    notify_consumer_ids_changed_enable: bool = True
    #: A client that has sent no heartbeat for this long is forgotten.
    channel_expired_timeout: int = 120_000
    #: Committed offsets go to disk this often; after a crash consumers repeat at most so much.
    flush_consumer_offset_interval: int = 5_000
    #: How members learn that a tool has reset their group: from the answer to their next pull, as RocketMQ 5 has it,
    #: which reaches every kind of client; or, if false, by a call to each of them, as 4.9 has it.
    use_server_side_reset_offset: bool = True
    #: Whether a master suggests a slave to readers that are far behind, and a slave keeps them until they are near
    #: again (O3). A slave serves reads in any case.
    slave_read_enable: bool = False
    long_polling_enable: bool = True
    #: How long a pull waits when long polling is off (RocketMQ's spelling).
    short_polling_time_mills: int = 1_000
    #: Pulls that may wait at once. Each costs about 1 KB; one more is told SYSTEM_BUSY and asks again after a pause.
    max_suspended_pulls: int = 100_000

    # --- Request–reply (E7) -----------------------------------------------------------------------------------

    #: Keep replies in ``<cluster>_REPLY_TOPIC`` as well as passing them on.
    store_reply_message_enable: bool = True
    #: Whether messages with a delivery time can be taken back before it (I2; RocketMQ: off).
    recall_message_enable: bool = True

    # --- Transactions (J1, J2) --------------------------------------------------------------------------------

    #: Refuse halves, as on a broker for other messages.
    reject_transaction_message: bool = False
    #: How old a half is before its producer is asked how the transaction ended; a producer may ask for more.
    transaction_time_out: int = 6_000
    transaction_check_interval: int = 30_000
    #: Checks that reached a producer, before the half is discarded to TRANS_CHECK_MAX_TIME_TOPIC.
    transaction_check_max: int = 15
    #: How long a half waits while no producer of its group is connected, before it is discarded. RocketMQ counts the
    #: checks that it could not send, too: 15 checks, less than 8 minutes.
    transaction_wait_max: int = 12 * 3_600_000
    #: Open transactions; one more is told SYSTEM_BUSY. Each takes about 100 bytes of memory.
    max_open_transactions: int = 1_000_000

    # --- Pop (F9) ---------------------------------------------------------------------------------------------

    #: Check points wait for their acks in memory first. If false, both go to the log at once, as in RocketMQ: a broker
    #: that is killed hands out less again, and the log takes a record for each.
    enable_pop_buffer_merge: bool = True
    #: How long they wait there at most, and until when before their messages are due.
    pop_ck_stay_buffer_time: int = 10_000
    pop_ck_stay_buffer_time_out: int = 3_000
    #: Check points that wait in memory; one more goes to the log at once.
    pop_ck_max_buffer_size: int = 200_000
    #: Queues of the revive topic, in which check points and acks are kept. Never fewer than before: those that are left
    #: out are not read.
    revive_queue_num: int = 8
    #: How often, in percent, a pop looks for messages to try again before all others, not after them.
    pop_from_retry_probability: int = 20
    #: Name retry topics group+topic instead of group_topic, which a group of that name could be confused with.
    enable_retry_topic_v2: bool = False
    #: With that: continue to empty those of the old name.
    retrieve_message_from_pop_retry_topic_v1: bool = True
    #: PULL or POP, for groups that let the broker assign queues, and that have no mode of their own.
    default_message_request_mode: RequestMode = RequestMode.PULL
    #: How many members' queues a member of such a group pops beside its own; 0 or less: each member pops all queues.
    default_pop_share_queue_num: int = -1
    #: Pops that may wait for the same messages, and in all; one more is told POLLING_FULL and asks again after a pause.
    pop_polling_size: int = 1_024
    max_pop_polling_size: int = 100_000

    # --- Shared consumption (R1–R3) ---------------------------------------------------------------------------

    #: A consumer that was not heard of for this long is offline: what it holds is written again for others.
    share_offline_time: int = 3 * 60_000
    #: One that was not heard of for this long is forgotten.
    share_gone_time: int = 2 * 24 * 3_600_000
    #: Messages that one consumer may hold; one that holds more must confirm some first.
    max_share_held: int = 10_000
    #: Consumers of one group and topic.
    max_share_consumers: int = 10_000
    #: Memory for what all consumers hold, as estimated; a run of neighbouring messages takes 120 bytes.
    max_share_bytes: int = 32 << 20

    # --- SQL filters (K2–K4) ----------------------------------------------------------------------------------

    #: Whether groups may filter by SQL92; tags are always possible.
    enable_property_filter: bool = False
    #: Whether each message is tried on the filters of its topic when it is stored (K3); needs enableConsumeQueueExt.
    enable_calc_filter_bit_map: bool = False
    #: Whether the filter of the original topic applies to messages of a retry topic as well (K4).
    filter_support_retry: bool = False
    #: Groups with a filter on one topic, for the size of Bloom maps; a change makes older maps useless.
    expect_consumer_num_use_filter: int = 32
    #: Messages in a hundred that a map may let through in vain.
    max_error_rate_of_bloom_filter: int = 20
    #: How long a filter is kept after the last member of its group has left.
    filter_data_clean_time_span: int = 24 * 3_600_000
    #: Characters of an expression, of SQL or tags. Reading one of this length takes about 15 ms.
    max_filter_expression_length: int = 16_384
    #: Properties, numbers and texts of an SQL expression. Each takes about 0.2 µs a message.
    max_filter_expression_terms: int = 1_024
    #: Levels of an SQL expression: parentheses, NOT, comparisons of comparisons.
    max_filter_expression_depth: int = 64
    #: How long an SQL filter may keep the loop for one pull or pop, which then answers with what it has.
    max_filter_time_per_pull: int = 10
    #: Terms of all filters on one topic for which Bloom maps are made: each message stored is tried on all of them.
    max_filter_terms_per_bit_map: int = 1_024
    #: Memory that the SQL filters of groups may take, as estimated by their length; and as much again each for
    #: expressions of SQL and of tags that requests bring along. Dead filters make room, longest dead first; a new one
    #: that still does not fit is refused.
    max_filter_bytes: int = 128 << 20
    #: Topics that one group may subscribe to, all its members together.
    max_subscriptions_per_group: int = 4_096
    #: Memory that the subscriptions of all connected consumers may take, as estimated by their length, and a sixteenth
    #: of it those of one connection; a group that does not fit is left out of the heartbeat.
    max_subscription_bytes: int = 256 << 20

    # --- Name servers (A2) ------------------------------------------------------------------------------------

    #: 10 to 60 s. Name servers forget a broker after 120 s.
    register_name_server_period: int = 30_000
    register_broker_timeout_mills: int = 24_000
    #: How often the address server is asked (A6). RocketMQ 5 asks every 10 s, 4.9 and clients every 2 minutes.
    fetch_namesrv_addr_interval: int = 120_000

    # --- Lanes (B3, M1): how much may queue, and for how long, before senders are told SYSTEM_BUSY ------------

    send_thread_pool_queue_capacity: int = 10_000
    wait_time_mills_in_send_queue: int = 200
    pull_thread_pool_queue_capacity: int = 100_000
    wait_time_mills_in_pull_queue: int = 5_000
    query_thread_pool_queue_capacity: int = 20_000
    heartbeat_thread_pool_queue_capacity: int = 50_000
    wait_time_mills_in_heartbeat_queue: int = 31_000
    admin_broker_thread_pool_queue_capacity: int = 10_000
    wait_time_mills_in_admin_broker_queue: int = 5_000

    # --- What the broker adds to each message -----------------------------------------------------------------

    region_id: str = "DefaultRegion"
    #: Tells clients whether to trace (Q1).
    trace_on: bool = True

    def __post_init__(self) -> None:
        UserAccessConfig.__post_init__(self)
        if not _BROKER_NAME.match(self.broker_name):
            raise ConfigError(
                f"invalid brokerName {self.broker_name!r}: expected 1 to 127 letters, digits, '.', '-', '_' and '@'"
            )
        if not _CLUSTER_NAME.match(self.broker_cluster_name):
            raise ConfigError(
                f"invalid brokerClusterName {self.broker_cluster_name!r}: expected 1 to 127 letters, digits, "
                "'.', '-' and '_'"
            )
        if not self.region_id.isprintable() or len(self.region_id.encode()) > _REGION_BYTES_MAX:
            raise ConfigError(
                f"invalid regionId {self.region_id[:_REGION_BYTES_MAX]!r}: it is part of each message; expected plain "
                f"text of at most {_REGION_BYTES_MAX} bytes"
            )
        check_factories("consumeHooks", self.consume_hooks)
        _check("listenPort", self.listen_port, 0, 65_535)
        _check("httpPort", self.http_port, 0, 65_535)
        _check("brokerId", self.broker_id, 0, 2**31 - 1)
        _check("brokerPermission", self.broker_permission, 0, READ | WRITE | INHERIT)
        _check("defaultTopicQueueNums", self.default_topic_queue_nums, 1, 65_535)
        _check("autoCreateTopicMax", self.auto_create_topic_max, 0, 1_000_000)
        _check("autoCreateSubscriptionGroupMax", self.auto_create_subscription_group_max, 0, 1_000_000)
        _check("registerNameServerPeriod", self.register_name_server_period, 10_000, 60_000)
        _check("reviveQueueNum", self.revive_queue_num, 1, 128)
        _check("popFromRetryProbability", self.pop_from_retry_probability, 0, 100)
        _check("popCkStayBufferTime", self.pop_ck_stay_buffer_time, 0, 3_600_000)
        _check("popCkStayBufferTimeOut", self.pop_ck_stay_buffer_time_out, 0, 3_600_000)
        _check("shareOfflineTime", self.share_offline_time, 1_000, 24 * 3_600_000)
        _check("shareGoneTime", self.share_gone_time, 1_000, 365 * 24 * 3_600_000)
        _check("maxShareHeld", self.max_share_held, 1, 100_000)
        _check("maxShareConsumers", self.max_share_consumers, 1, 1_000_000)
        _check("maxShareBytes", self.max_share_bytes, 1 << 20, 1 << 40)
        _check("flushConsumerOffsetInterval", self.flush_consumer_offset_interval, 1, 3_600_000)
        _check("expectConsumerNumUseFilter", self.expect_consumer_num_use_filter, 1, 10_000)
        _check("maxErrorRateOfBloomFilter", self.max_error_rate_of_bloom_filter, 1, 99)
        _check("maxFilterExpressionLength", self.max_filter_expression_length, 1, 1_000_000)
        _check("maxFilterExpressionTerms", self.max_filter_expression_terms, 1, 100_000)
        # Six calls a level; Python's stack has 1,000.
        _check("maxFilterExpressionDepth", self.max_filter_expression_depth, 1, 100)
        _check("maxFilterTimePerPull", self.max_filter_time_per_pull, 1, 10_000)
        _check("maxFilterTermsPerBitMap", self.max_filter_terms_per_bit_map, 0, 1_000_000)
        _check("maxFilterBytes", self.max_filter_bytes, 1 << 20, 1 << 40)
        _check("maxSubscriptionsPerGroup", self.max_subscriptions_per_group, 1, 1_000_000)
        _check("transactionTimeOut", self.transaction_time_out, 0, 365 * 24 * 3_600_000)
        _check("transactionCheckInterval", self.transaction_check_interval, 100, 24 * 3_600_000)
        _check("transactionCheckMax", self.transaction_check_max, 1, 1_000_000)
        _check("transactionWaitMax", self.transaction_wait_max, 1_000, 365 * 24 * 3_600_000)
        _check("maxOpenTransactions", self.max_open_transactions, 1, 100_000_000)
        _check("maxSubscriptionBytes", self.max_subscription_bytes, 1 << 20, 1 << 40)
        # All of these can be changed while the broker runs: a value that stops it would also stop the way back.
        for name in (
            "channel_expired_timeout",
            "short_polling_time_mills",
            "register_broker_timeout_mills",
            "filter_data_clean_time_span",
            "fetch_namesrv_addr_interval",
        ):
            _check(rocketmq_name(name), getattr(self, name), 1, 365 * 24 * 3_600_000)
        for name in (
            "wait_time_mills_in_send_queue",
            "wait_time_mills_in_pull_queue",
            "wait_time_mills_in_heartbeat_queue",
            "wait_time_mills_in_admin_broker_queue",
        ):
            _check(rocketmq_name(name), getattr(self, name), 0, 3_600_000)
        for name in (
            "send_thread_pool_queue_capacity",
            "pull_thread_pool_queue_capacity",
            "query_thread_pool_queue_capacity",
            "heartbeat_thread_pool_queue_capacity",
            "admin_broker_thread_pool_queue_capacity",
            "max_suspended_pulls",
            "pop_polling_size",
            "max_pop_polling_size",
        ):
            _check(rocketmq_name(name), getattr(self, name), 1, 100_000_000)
        _check("popCkMaxBufferSize", self.pop_ck_max_buffer_size, 0, 100_000_000)
        _check("defaultPopShareQueueNum", self.default_pop_share_queue_num, -1_000_000, 1_000_000)

    @property
    def hook_names(self) -> list[str]:
        return check_factories("consumeHooks", self.consume_hooks)

    @property
    def name_servers(self) -> tuple[str, ...]:
        return tuple(address.strip() for address in self.namesrv_addr.replace(",", ";").split(";") if address.strip())


def _check(key: str, value: int, least: int, most: int) -> None:
    if not least <= value <= most:
        raise ConfigError(f"invalid {key} {value}: expected {least} to {most}")
