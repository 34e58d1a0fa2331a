"""Quotas of topics and groups over all brokers of a cluster (M1)."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

import msgspec

from ternmq.admin.brokers import BrokerAdmin, BrokerInfo
from ternmq.admin.groups import GroupAdmin
from ternmq.admin.topics import TopicAdmin
from ternmq.client.connect.instance import ClientInstance
from ternmq.errors import GroupMissing, TopicMissing
from ternmq.names import QUOTA_BYTES, QUOTA_MESSAGES
from ternmq.wire.bodies.codec import encode
from ternmq.wire.bodies.groups import SubscriptionGroupConfig
from ternmq.wire.bodies.topics import TopicConfig
from ternmq.wire.codes import RequestCode
from ternmq.wire.requests_admin import UpdateTopic

_KEYS: Final = (QUOTA_MESSAGES, QUOTA_BYTES)


@dataclass(slots=True, frozen=True)
class QuotaInfo:
    """What one broker lets pass in a second.

    Attributes:
        kind: ``topic`` (what producers may send to it) or ``group`` (what its consumers may get).
        name: The topic or group.
        broker: The broker with this quota; each broker counts alone.
        messages: Messages a second; None: any number.
        bytes: Bytes of message bodies a second; None: any number.
    """

    kind: str
    name: str
    broker: str
    messages: int | None
    bytes: int | None


class QuotaAdmin:
    """Quotas of topics and groups: ``admin.quotas``."""

    def __init__(self, instance: ClientInstance, brokers: BrokerAdmin, topics: TopicAdmin, groups: GroupAdmin) -> None:
        self._instance = instance
        self._brokers = brokers
        self._topics = topics
        self._groups = groups

    async def all(self) -> list[QuotaInfo]:
        """All quotas of all brokers, topics first."""
        masters = await self._brokers.masters()
        found = [each for of_broker in await asyncio.gather(*map(self._of_broker, masters)) for each in of_broker]
        return sorted(found, key=lambda quota: (quota.kind == "group", quota.name, quota.broker))

    async def set_topic(
        self, topic: str, *, messages: int | None = None, size_bytes: int | None = None
    ) -> list[BrokerInfo]:
        """Let each broker take no more than so many ``messages``, or ``size_bytes`` of bodies, a second for ``topic``;
        returns the brokers. None: any number.

        Producers that send more are told SYSTEM_BUSY. Raises ``TopicMissing``, ``InvalidParameter`` for a value below
        1.
        """
        changes = _changes((messages, size_bytes))
        header = ",".join(f"{key}={value}" if value else key for key, value in changes.items())
        changed = []
        for master in await self._brokers.masters():
            config = (await self._topics.table(master)).get(topic)
            if config is not None:
                await self._instance.ask(
                    master.address, RequestCode.UPDATE_AND_CREATE_TOPIC, _update(config, attributes=header)
                )
                changed.append(master)
        if not changed:
            raise TopicMissing(f"no broker has topic {topic!r}; create it with `tern topic create {topic}`", broker="")
        return changed

    async def set_group(
        self, group: str, *, messages: int | None = None, size_bytes: int | None = None
    ) -> list[BrokerInfo]:
        """Let each broker give no more than so many ``messages``, or ``size_bytes`` of bodies, a second to ``group``;
        returns the brokers. None: any number.

        Consumers that fetch more wait. Raises ``GroupMissing``, ``InvalidParameter`` for a value below 1.
        """
        changes = _changes((messages, size_bytes))
        changed = []
        for master in await self._brokers.masters():
            config = (await self._groups.table(master)).get(group)
            if config is not None:
                body = encode(msgspec.structs.replace(config, attributes=changes))
                await self._instance.ask(master.address, RequestCode.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP, None, body)
                changed.append(master)
        if not changed:
            raise GroupMissing(f"no broker has group {group!r}; create it with `tern group create {group}`")
        return changed

    async def _of_broker(self, broker: BrokerInfo) -> list[QuotaInfo]:
        tables: tuple[tuple[str, Mapping[str, TopicConfig] | Mapping[str, SubscriptionGroupConfig]], ...] = (
            ("topic", await self._topics.table(broker)),
            ("group", await self._groups.table(broker)),
        )
        return [
            QuotaInfo(kind, name, broker.name, *rates)
            for kind, table in tables
            for name, config in table.items()
            if (rates := _rates(config.attributes)) != (None, None)
        ]


def _changes(rates: tuple[int | None, int | None]) -> dict[str, str]:
    """Attributes to set and to remove. What is removed has no value."""
    return {
        f"-{key}" if rate is None else f"+{key}": "" if rate is None else str(rate)
        for key, rate in zip(_KEYS, rates, strict=True)
    }


def _rates(attributes: Mapping[str, str] | None) -> tuple[int | None, int | None]:
    texts = ((attributes or {}).get(key, "") for key in _KEYS)
    messages, size_bytes = (int(text) if text.isdecimal() else None for text in texts)
    return messages, size_bytes


def _update(config: TopicConfig, *, attributes: str) -> UpdateTopic:
    """A request that changes nothing but the attributes of a topic."""
    return UpdateTopic(
        topic=config.topic_name,
        read_queue_nums=config.read_queue_nums,
        write_queue_nums=config.write_queue_nums,
        perm=config.perm,
        topic_filter_type=config.topic_filter_type,
        topic_sysflag=config.topic_sys_flag,
        order=config.order,
        attributes=attributes,
    )
