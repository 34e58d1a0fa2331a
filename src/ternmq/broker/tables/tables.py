"""All tables of a broker together: loaded from their files, and given new settings."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from ternmq.broker.config import BrokerConfig
from ternmq.broker.hooks import ConsumptionHooks
from ternmq.broker.tables.clients import Clients
from ternmq.broker.tables.filters import Filters
from ternmq.broker.tables.groups import Groups
from ternmq.broker.tables.locks import Locks
from ternmq.broker.tables.offsets import Offsets
from ternmq.broker.tables.stats import Stats
from ternmq.broker.tables.topics import Topics
from ternmq.env import Clock
from ternmq.files import TableFile


@dataclass(slots=True, frozen=True)
class Tables:
    """What a broker knows: four tables with a file each under ``config/``, three in memory only."""

    topics: Topics
    groups: Groups
    offsets: Offsets
    clients: Clients
    filters: Filters
    locks: Locks
    stats: Stats

    @classmethod
    def load(
        cls,
        config: BrokerConfig,
        clock: Clock,
        file: Callable[[str], TableFile],
        *,
        delay_levels: int,
        hooks: ConsumptionHooks | None = None,
    ) -> Tables:
        """Read the files; raises ``CorruptFile`` for one that cannot be read, and its backup neither."""
        clients = Clients(
            clock, silence_max_ms=config.channel_expired_timeout, said_bytes_max=config.max_subscription_bytes
        )
        tables = cls(
            Topics(
                file("topics.json"),
                clock,
                broker_name=config.broker_name,
                cluster_name=config.broker_cluster_name,
                auto_create=config.auto_create_topic_enable,
                auto_create_max=config.auto_create_topic_max,
                default_queues=config.default_topic_queue_nums,
                revive_queues=config.revive_queue_num,
                trace_topic=config.msg_trace_topic_name if config.trace_topic_enable else "",
                delay_levels=delay_levels,
            ),
            Groups(
                file("subscriptionGroup.json"),
                clock,
                broker_name=config.broker_name,
                auto_create=config.auto_create_subscription_group,
                auto_create_max=config.auto_create_subscription_group_max,
            ),
            Offsets(file("consumerOffset.json"), file("ownOffset.json"), clock),
            clients,
            Filters(file("consumerFilter.json"), clock, clients, config),
            Locks(clock),
            Stats(clock, hooks=hooks),
        )
        for saved in (tables.topics, tables.groups, tables.offsets, tables.filters):
            saved.load()
        return tables

    def apply(self, config: BrokerConfig) -> None:
        """Hand new settings over."""
        self.topics.apply(auto_create=config.auto_create_topic_enable, auto_create_max=config.auto_create_topic_max)
        self.groups.apply(
            auto_create=config.auto_create_subscription_group,
            auto_create_max=config.auto_create_subscription_group_max,
        )
        self.clients.apply(silence_max_ms=config.channel_expired_timeout, said_bytes_max=config.max_subscription_bytes)
        self.filters.apply(config)
