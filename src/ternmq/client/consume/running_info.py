"""How a consumer is, in the form that RocketMQ's tools know (GET_CONSUMER_RUNNING_INFO 307; F10)."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Final

from ternmq.client.connect.instance import ClientInstance
from ternmq.client.consume.config import PushConfig
from ternmq.client.consume.fetch import QueueReader
from ternmq.client.consume.locks import Locks
from ternmq.client.consume.stats import ConsumeStats
from ternmq.client.consume.subscription import Subscription
from ternmq.env import Clock
from ternmq.wire.bodies.clients import ConsumeType, ProcessQueueInfo, RunningInfo
from ternmq.wire.bodies.codec import by_key

_MIB: Final = 1024 * 1024
#: Tools show a client's version by its name in Java; ours is this one for all that they can see.
CLIENT_VERSION: Final = "TernMQ"


def running_info(
    instance: ClientInstance,
    group: str,
    config: PushConfig,
    *,
    subscriptions: Mapping[str, Subscription],
    readers: Iterable[QueueReader],
    locks: Locks | None,
    stats: ConsumeStats,
    started_ms: int,
    kind: ConsumeType = ConsumeType.PASSIVELY,
) -> RunningInfo:
    """All but the stack dump. ``group`` is its name on the wire."""
    clock = instance.env.clock
    return RunningInfo(
        properties=_properties(instance, group, config, started_ms=started_ms, kind=kind),
        subscription_set=[subscription.data for subscription in subscriptions.values()],
        mq_table=by_key({reader.queue: _queue_info(reader, locks, clock) for reader in readers}),
        status_table=stats.by_topic(),
    )


def _properties(
    instance: ClientInstance, group: str, config: PushConfig, *, started_ms: int, kind: ConsumeType
) -> dict[str, str]:
    """What tools look for (PROP_…), and the settings under RocketMQ's names."""
    limits = config.limits
    known: dict[str, object] = {
        "PROP_CONSUMER_START_TIMESTAMP": started_ms,
        "PROP_CONSUME_TYPE": kind.value,
        "PROP_CONSUMEORDERLY": config.orderly,
        "PROP_THREADPOOL_CORE_SIZE": config.threads,
        "PROP_NAMESERVER_ADDR": ";".join(instance.config.addresses),
        "PROP_CLIENT_VERSION": CLIENT_VERSION,
        "consumerGroup": group,
        "clientIP": instance.client_ip,
        "messageModel": config.model.value,
        "consumeFromWhere": config.start.where.value,
        "allocateMessageQueueStrategy": config.allocation.name,
        "consumeThreadMax": config.threads,
        "consumeMessageBatchMaxSize": config.batch_max,
        "consumeTimeout": config.consume_timeout_ms // 60_000,
        "maxReconsumeTimes": -1 if config.max_reconsume_times is None else config.max_reconsume_times,
        "suspendCurrentQueueTimeMillis": config.orderly_retry_ms,
        "pullBatchSize": config.pull_count_max,
        "pullThresholdForQueue": limits.count,
        "pullThresholdSizeForQueue": limits.body_bytes // _MIB,
        "pullThresholdForTopic": limits.topic_count or -1,
        "pullThresholdSizeForTopic": limits.topic_body_bytes // _MIB or -1,
        "consumeConcurrentlyMaxSpan": limits.span,
    }
    return {name: str(value).lower() if isinstance(value, bool) else str(value) for name, value in known.items()}


def _queue_info(reader: QueueReader, locks: Locks | None, clock: Clock) -> ProcessQueueInfo:
    held = reader.held
    locked_at = locks.asked_at(reader.queue) if locks is not None else None
    return ProcessQueueInfo(
        commit_offset=held.progress,
        cached_msg_min_offset=held.progress if len(held) else 0,
        cached_msg_max_offset=held.progress + held.span if len(held) else 0,
        cached_msg_count=len(held),
        cached_msg_size_in_mib=held.body_bytes // _MIB,
        locked=locks is not None and locks.is_held(reader.queue),
        last_lock_timestamp=0 if locked_at is None else clock.now_ms() - int((clock.monotonic() - locked_at) * 1000),
        dropped=held.dropped,
        last_pull_timestamp=held.last_fetched_ms,
        last_consume_timestamp=held.last_consumed_ms,
    )
