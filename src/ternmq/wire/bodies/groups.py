"""Consumer groups as a broker keeps them (D2, D6)."""

from __future__ import annotations

from ternmq.wire.bodies.codec import Body, always
from ternmq.wire.bodies.topics import DataVersion


class CustomizedRetry(Body, frozen=True, kw_only=True):
    """Delays in ms, one after the other."""

    next: list[int] = always(list)


class ExponentialRetry(Body, frozen=True, kw_only=True):
    """Delays in ms that grow by a factor."""

    initial: int = always(lambda: 5_000)
    max: int = always(lambda: 7_200_000)
    multiplier: int = always(lambda: 2)


class GroupRetryPolicy(Body, frozen=True, kw_only=True):
    """How a group of RocketMQ 5 retries: CUSTOMIZED (the delay levels, unless it lists its own) or EXPONENTIAL."""

    type: str = always(lambda: "CUSTOMIZED")
    customized_retry_policy: CustomizedRetry | None = None
    exponential_retry_policy: ExponentialRetry | None = None


class SimpleSubscription(Body, frozen=True, kw_only=True):
    topic: str
    expression_type: str | None = None
    expression: str | None = None
    version: int = always(int)


class SubscriptionGroupConfig(Body, frozen=True, kw_only=True):
    """One group (UPDATE_AND_CREATE_SUBSCRIPTIONGROUP 200); the members from ``attributes`` on are RocketMQ 5's."""

    group_name: str
    consume_enable: bool = always(lambda: True)
    consume_from_min_enable: bool = always(lambda: True)
    consume_broadcast_enable: bool = always(lambda: True)
    retry_queue_nums: int = always(lambda: 1)
    retry_max_times: int = always(lambda: 16)
    broker_id: int = always(int)
    which_broker_when_consume_slowly: int = always(lambda: 1)
    notify_consumer_ids_changed_enable: bool = always(lambda: True)
    attributes: dict[str, str] | None = None
    consume_message_orderly: bool | None = None
    consume_timeout_minute: int | None = None
    group_retry_policy: GroupRetryPolicy | None = None
    group_sys_flag: int | None = None
    subscription_data_set: list[SimpleSubscription] | None = None


class GroupTable(Body, frozen=True, kw_only=True):
    """GET_ALL_SUBSCRIPTIONGROUP_CONFIG 201. ``forbidden_table`` has bits per group and topic."""

    data_version: DataVersion = always(DataVersion)
    subscription_group_table: dict[str, SubscriptionGroupConfig] = always(dict)
    forbidden_table: dict[str, dict[str, int]] | None = None
    #: As in ``TopicTable``.
    changes_included: int | None = None


class GroupConfigs(Body, frozen=True, kw_only=True):
    """UPDATE_AND_CREATE_SUBSCRIPTIONGROUP_LIST 225."""

    group_config_list: list[SubscriptionGroupConfig] = always(list)


class GroupList(Body, frozen=True, kw_only=True):
    """QUERY_TOPIC_CONSUME_BY_WHO 300."""

    group_list: list[str] = always(list)


class GroupReadable(Body, frozen=True, kw_only=True):
    """Answer to UPDATE_AND_GET_GROUP_FORBIDDEN 353."""

    group: str
    topic: str
    readable: bool = always(bool)
