"""What a consumer wants of one topic, in the two forms in which it is needed: as a filter here, as data in heartbeats
(D3, K1)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from ternmq.filter.tags import TagFilter
from ternmq.wire.bodies.clients import SubscriptionData
from ternmq.wire.ids import java_hash

TAG: Final = "TAG"


@dataclass(slots=True, frozen=True)
class Subscription:
    """One topic (by its name on the wire) and the messages of it that are wanted."""

    topic: str
    filter: TagFilter
    data: SubscriptionData

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
