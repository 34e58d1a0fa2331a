"""What a consumer wants of one topic, in the two forms in which it is needed: as a filter here, as data in heartbeats
(D3, K1, K2)."""

from __future__ import annotations

import contextlib
from dataclasses import dataclass
from typing import Final

from ternmq.client.connect.instance import ClientInstance
from ternmq.client.connect.namespace import wrap
from ternmq.env import Clock
from ternmq.errors import ConfigError, NetworkError, RouteMissing, refused
from ternmq.filter.sql import DEFAULT_LIMITS
from ternmq.filter.sql import check as check_sql
from ternmq.filter.tags import ALL, TagFilter
from ternmq.names import check_topic, retry_topic
from ternmq.wire.bodies.clients import ClientCheck, SubscriptionData
from ternmq.wire.bodies.codec import encode
from ternmq.wire.codes import RequestCode, ResponseCode
from ternmq.wire.ids import java_hash

TAG: Final = "TAG"
SQL92: Final = "SQL92"
#: Characters of an expression that an error shows.
_SHOWN_MAX: Final = 200


class Subscriptions:
    """The subscriptions of one consumer, which change while it runs; ``namespace`` is that of its client."""

    def __init__(self, namespace: str, clock: Clock) -> None:
        self._namespace = namespace
        self._clock = clock
        #: By topic on the wire. Sources and heartbeats look into it at any time.
        self.by_topic: dict[str, Subscription] = {}

    def add(self, topic: str, tags: str, sql: str | None) -> bool:
        """Subscribe to ``topic``; returns whether that changes anything. Raises as ``PushConsumer.subscribe``."""
        name = wrap(self._namespace, check_topic(topic))
        known = self.by_topic.get(name)
        version = max(self._clock.now_ms(), known.data.sub_version + 1 if known is not None else 0)
        subscription = Subscription.of(name, tags, sql, version=version)
        if known is not None and known.wants_same_as(subscription):
            return False
        self.by_topic[name] = subscription
        return True

    def add_retries(self, group: str) -> None:
        """Subscribe to the group's retry topic; ``group`` is its name on the wire."""
        retries = retry_topic(group)
        self.by_topic[retries] = Subscription.by_tags(retries, "*", version=self._clock.now_ms())

    def remove(self, topic: str) -> bool:
        """Returns whether there was a subscription to ``topic``."""
        return self.by_topic.pop(wrap(self._namespace, topic), None) is not None

    async def check(self, instance: ClientInstance, group: str) -> None:
        """Ask for the routes of all topics, and their brokers whether they take the filters.

        Raises ``NameServersUnreachable``, which is worth more than warnings for ever, and as ``Subscription.check``. A
        topic that does not exist yet is not an error.
        """
        for topic, subscription in list(self.by_topic.items()):
            with contextlib.suppress(RouteMissing):
                await instance.routes.of(topic)
            await subscription.check(instance, group)


@dataclass(slots=True, frozen=True)
class Subscription:
    """One topic (by its name on the wire) and the messages of it that are wanted.

    ``filter`` is what is left to do here: brokers compare only the hashes of tags, but SQL they evaluate wholly.
    """

    topic: str
    filter: TagFilter
    data: SubscriptionData

    @classmethod
    def of(cls, topic: str, tags: str | None, sql: str | None, *, version: int) -> Subscription:
        """By tags or by SQL, whichever is given; raises ``ConfigError`` for both."""
        if sql is None:
            return cls.by_tags(topic, tags, version=version)
        if tags is not None and tags.strip() not in ("", ALL):
            raise ConfigError(
                f"{topic} has a subscription with tags {tags!r} and SQL; use one expression: "
                "sql=\"TAGS IN ('a', 'b') AND …\""
            )
        return cls.by_sql(topic, sql, version=version)

    @classmethod
    def by_tags(cls, topic: str, expression: str | None, *, version: int) -> Subscription:
        """A subscription by tags: ``*``, ``A``, ``A || B``.

        ``version`` must grow with each change: brokers refuse a pull that knows a newer subscription than their last
        heartbeat told them of. RocketMQ takes the time in ms.
        """
        wanted = TagFilter.parse(expression)
        data = SubscriptionData(
            topic=topic,
            sub_string=wanted.expression,
            tags_set=list(wanted.tags),
            code_set=sorted(wanted.codes(java_hash)),
            sub_version=version,
            expression_type=TAG,
        )
        return cls(topic, wanted, data)

    @classmethod
    def by_sql(cls, topic: str, expression: str, *, version: int) -> Subscription:
        """A subscription by SQL; raises ``InvalidExpression`` for what no broker could read. ``check`` asks them."""
        check_sql(expression)
        data = SubscriptionData(topic=topic, sub_string=expression, sub_version=version, expression_type=SQL92)
        return cls(topic, TagFilter.parse(ALL), data)

    def wants_same_as(self, other: Subscription) -> bool:
        """Whether the two differ in nothing but their version."""
        mine, others = self.data, other.data
        return (mine.expression_type, mine.sub_string) == (others.expression_type, others.sub_string)

    async def check(self, instance: ClientInstance, group: str) -> None:
        """Ask the topic's brokers whether they filter by this: SQL, or more tags than fit the usual limit of an
        expression. Its route must be there.

        Raises ``SubscriptionInvalid``, or ``SystemFailure`` of a broker that does not filter by SQL. A broker that does
        not answer is left out: its pulls will tell.
        """
        route = instance.routes.known(self.topic)
        expression = self.data.sub_string
        if route is None or (self.data.expression_type == TAG and len(expression) <= DEFAULT_LIMITS.length):
            return
        body = encode(ClientCheck(client_id=instance.client_id, group=group, subscription_data=self.data))
        for name in route.brokers:
            with contextlib.suppress(NetworkError):
                address = instance.copy_of(name).address
                response = await instance.call(address, RequestCode.CHECK_CLIENT_CONFIG, None, body)
                if response.code != ResponseCode.SUCCESS:
                    shown = repr(expression) if len(expression) <= _SHOWN_MAX else f"{expression[:_SHOWN_MAX]!r}…"
                    kind = "tags" if self.data.expression_type == TAG else "SQL filter"
                    said = f"{name} refused the {kind} {shown} of {self.topic}"
                    raise refused(response.code, f"{said}: {response.remark}", broker=name)
