"""What tools read from a broker: offsets of topics and groups, rates, access control (D4, D5, D6, N1), and the tables
that a slave copies from its master (O4)."""

from __future__ import annotations

from ternmq.wire.bodies.clients import SubscriptionData
from ternmq.wire.bodies.codec import Body, Queue, QueueKey, always
from ternmq.wire.bodies.topics import DataVersion

# --- Offsets --------------------------------------------------------------------------------------------------


class QueueStats(Body, frozen=True, kw_only=True):
    min_offset: int = always(int)
    max_offset: int = always(int)
    last_update_timestamp: int = always(int)


class TopicStats(Body, frozen=True, kw_only=True):
    """GET_TOPIC_STATS_INFO 202."""

    offset_table: dict[QueueKey, QueueStats] = always(dict)
    topic_put_tps: float | None = None


class QueueConsumeStats(Body, frozen=True, kw_only=True):
    """The committed offset of a group in one queue, and the end of the queue."""

    broker_offset: int = always(int)
    consumer_offset: int = always(int)
    #: Since RocketMQ 5.
    pull_offset: int | None = None
    last_timestamp: int = always(int)


class ConsumeStats(Body, frozen=True, kw_only=True):
    """GET_CONSUME_STATS 208."""

    offset_table: dict[QueueKey, QueueConsumeStats] = always(dict)
    consume_tps: float = always(float)


class BrokerConsumeStats(Body, frozen=True, kw_only=True):
    """GET_BROKER_CONSUME_STATS 317: for each group its topics."""

    consume_stats_list: list[dict[str, list[ConsumeStats]]] = always(list)
    broker_addr: str | None = None
    total_diff: int = always(int)
    total_inflight_diff: int | None = None


class QueueTimeSpan(Body, frozen=True, kw_only=True):
    message_queue: Queue
    min_time_stamp: int = always(int)
    max_time_stamp: int = always(int)
    consume_time_stamp: int = always(int)
    delay_time: int = always(int)


class TimeSpans(Body, frozen=True, kw_only=True):
    """QUERY_CONSUME_TIME_SPAN 303."""

    consume_time_span_set: list[QueueTimeSpan] = always(list)


class CorrectionOffsets(Body, frozen=True, kw_only=True):
    """QUERY_CORRECTION_OFFSET 308: by queue id."""

    correction_offsets: dict[int, int] = always(dict)


class ConsumeQueueEntry(Body, frozen=True, kw_only=True):
    physic_offset: int = always(int)
    physic_size: int = always(int)
    tags_code: int = always(int)
    extend_data_json: str | None = None
    bit_map: str | None = None
    eval: bool = always(bool)
    msg: str | None = None


class ConsumeQueueEntries(Body, frozen=True, kw_only=True):
    """QUERY_CONSUME_QUEUE 321."""

    queue_data: list[ConsumeQueueEntry] = always(list)
    min_queue_index: int = always(int)
    max_queue_index: int = always(int)
    subscription_data: SubscriptionData | None = None
    filter_data: str | None = None


# --- Rates and state ------------------------------------------------------------------------------------------


class Rate(Body, frozen=True, kw_only=True):
    """Sum, rate per second and average per call over a period."""

    sum: int = always(int)
    tps: float = always(float)
    avgpt: float = always(float)


class BrokerStats(Body, frozen=True, kw_only=True):
    """VIEW_BROKER_STATS_DATA 315: one series."""

    stats_minute: Rate = always(Rate)
    stats_hour: Rate = always(Rate)
    stats_day: Rate = always(Rate)


class HaConnection(Body, frozen=True, kw_only=True):
    """One slave, as its master sees it."""

    addr: str = always(str)
    slave_ack_offset: int = always(int)
    diff: int = always(int)
    in_sync: bool = always(bool)
    transferred_byte_in_second: int = always(int)
    transfer_from_where: int = always(int)


class HaClient(Body, frozen=True, kw_only=True):
    """The state of a slave, reported by itself."""

    master_addr: str = always(str)
    transferred_byte_in_second: int = always(int)
    max_offset: int = always(int)
    last_read_timestamp: int = always(int)
    last_write_timestamp: int = always(int)
    master_flush_offset: int = always(int)
    is_activated: bool = always(bool)


class HaStatus(Body, frozen=True, kw_only=True):
    """GET_BROKER_HA_STATUS 907."""

    master: bool = always(bool)
    master_commit_log_max_offset: int = always(int)
    in_sync_slave_nums: int = always(int)
    ha_connection_info: list[HaConnection] = always(list)
    ha_client_runtime_info: HaClient | None = None


# --- What a slave copies --------------------------------------------------------------------------------------


class ConsumerOffsets(Body, frozen=True, kw_only=True):
    """GET_ALL_CONSUMER_OFFSET 43: by ``topic@group``, then by queue id."""

    offset_table: dict[str, dict[int, int]] = always(dict)
    data_version: DataVersion | None = None
    #: As in ``TopicTable``.
    changes_included: int | None = None


class DelayOffsets(Body, frozen=True, kw_only=True):
    """GET_ALL_DELAY_OFFSET 45: by delay level."""

    offset_table: dict[int, int] = always(dict)
    data_version: DataVersion | None = None


class TimerMetric(Body, frozen=True, kw_only=True):
    count: int = always(int)
    time_stamp: int = always(int)


class TimerMetrics(Body, frozen=True, kw_only=True):
    """GET_TIMER_METRICS 61: messages that wait, by topic."""

    timing_count: dict[str, TimerMetric] = always(dict)
    data_version: DataVersion | None = None


class DelayedCounts(Body, frozen=True, kw_only=True):
    """GET_DELAYED_STATS: messages that wait for their delivery time."""

    waiting: int = always(int)
    #: By topic.
    topics: dict[str, int] = always(dict)
    #: By the begin of the hour, in ms since 1970.
    hours: dict[int, int] = always(dict)


# --- Access control -------------------------------------------------------------------------------------------


class AclAccount(Body, frozen=True, kw_only=True):
    access_key: str
    secret_key: str | None = None
    white_remote_address: str | None = None
    admin: bool = always(bool)
    default_topic_perm: str | None = None
    default_group_perm: str | None = None
    topic_perms: list[str] | None = None
    group_perms: list[str] | None = None


class AclConfig(Body, frozen=True, kw_only=True):
    """GET_BROKER_CLUSTER_ACL_CONFIG 54."""

    global_white_addrs: list[str] = always(list)
    accounts: list[AclAccount] = always(list, name="plainAccessConfigs")
