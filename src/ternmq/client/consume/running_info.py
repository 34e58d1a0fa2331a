"""How a consumer is, in the form that RocketMQ's tools know (GET_CONSUMER_RUNNING_INFO 307; F10)."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Final

from ternmq.client.connect.instance import ClientInstance
from ternmq.client.consume.config import PushConfig
from ternmq.client.consume.source import Source
from ternmq.client.consume.stats import ConsumerCounts
from ternmq.client.consume.subscription import Subscription
from ternmq.wire.bodies.clients import ConsumeType, PopQueueInfo, ProcessQueueInfo, RunningInfo
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
    sources: Iterable[Source],
    stats: ConsumerCounts,
    started_ms: int,
    kind: ConsumeType,
) -> RunningInfo:
    """All but the stack dump. ``group`` is its name on the wire."""
    infos = {source.queue: source.info() for source in sources}
    popped = {queue: info for queue, info in infos.items() if isinstance(info, PopQueueInfo)}
    pulled = {queue: info for queue, info in infos.items() if isinstance(info, ProcessQueueInfo)}
    return RunningInfo(
        properties=_properties(instance, group, config, started_ms=started_ms, kind=kind),
        subscription_set=[subscription.data for subscription in subscriptions.values()],
        mq_table=by_key(pulled),
        mq_pop_table=by_key(popped),
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
        "PROP_NAMESERVER_ADDR": ";".join(instance.name_servers.addresses),
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
