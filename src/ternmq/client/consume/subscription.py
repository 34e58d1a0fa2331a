"""What a consumer wants of one topic, in the two forms in which it is needed: as a filter here, as data in heartbeats
(D3, K1, K2)."""

from __future__ import annotations

import contextlib
from dataclasses import dataclass
from typing import Final

from ternmq.client.connect.instance import ClientInstance
from ternmq.client.connect.routes import MASTER_ID
from ternmq.errors import ConfigError, NetworkError, refused
from ternmq.filter.sql import DEFAULT_LIMITS
from ternmq.filter.sql import check as check_sql
from ternmq.filter.tags import ALL, TagFilter
from ternmq.wire.bodies.clients import ClientCheck, SubscriptionData
from ternmq.wire.bodies.codec import encode
from ternmq.wire.codes import RequestCode, ResponseCode
from ternmq.wire.ids import java_hash

TAG: Final = "TAG"
SQL92: Final = "SQL92"
#: Characters of an expression that an error shows.
_SHOWN_MAX: Final = 200


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
                address = route.address(name, MASTER_ID) or instance.broker_address(name)
                response = await instance.call(address, RequestCode.CHECK_CLIENT_CONFIG, None, body)
                if response.code != ResponseCode.SUCCESS:
                    shown = repr(expression) if len(expression) <= _SHOWN_MAX else f"{expression[:_SHOWN_MAX]!r}…"
                    kind = "tags" if self.data.expression_type == TAG else "SQL filter"
                    said = f"{name} refused the {kind} {shown} of {self.topic}"
                    raise refused(response.code, f"{said}: {response.remark}", broker=name)
