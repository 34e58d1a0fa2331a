"""Pop, put together (F9): the parts of the package ``pop`` and their handlers, as the broker mounts them."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable

from ternmq import names
from ternmq.broker.config import BrokerConfig
from ternmq.broker.handlers.ack import AckHandlers
from ternmq.broker.handlers.pop import PopHandlers
from ternmq.broker.tables.filters import Filters
from ternmq.broker.tables.groups import Groups
from ternmq.broker.tables.offsets import Offsets
from ternmq.broker.tables.stats import Stats
from ternmq.broker.tables.topics import Topics
from ternmq.env import Clock
from ternmq.files import TableFile
from ternmq.net.peer import Peer, Route
from ternmq.pop.assign import RequestModes
from ternmq.pop.buffer import Buffer
from ternmq.pop.checkpoints import QueueKey
from ternmq.pop.orderly import Orders
from ternmq.pop.revive import Reviver
from ternmq.pop.revive_log import ReviveLog
from ternmq.pop.take import Taker
from ternmq.store.store import MessageStore


class Popping:
    """All methods belong to the broker's loop. Made when the store is open; ``close`` before it closes."""

    def __init__(
        self,
        *,
        config: BrokerConfig,
        table_file: Callable[[str], TableFile],
        store: MessageStore,
        store_host: bytes,
        topics: Topics,
        groups: Groups,
        offsets: Offsets,
        stats: Stats,
        filters: Filters,
        clock: Clock,
        choice: random.Random,
    ) -> None:
        """``table_file`` is a file of that name under ``config/``; raises ``CorruptFile`` if it cannot be read."""
        call_later = asyncio.get_running_loop().call_later
        self.modes = RequestModes(
            table_file("messageRequestMode.json"),
            default_mode=config.default_message_request_mode,
            default_share=config.default_pop_share_queue_num,
        )
        revive_log = ReviveLog(
            store,
            offsets,
            topic=names.revive_topic(config.broker_cluster_name),
            queues=config.revive_queue_num,
            broker_name=config.broker_name,
            store_host=store_host,
            now_ms=clock.now_ms,
        )
        reviver = Reviver(
            store=store,
            offsets=offsets,
            topics=topics,
            has_group=lambda group: groups.get(group) is not None,
            retry_v2=config.enable_retry_topic_v2,
        )
        self._buffer = Buffer(
            store=store,
            offsets=offsets,
            revive_log=revive_log,
            reviver=reviver,
            clock=clock,
            call_later=call_later,
            enabled=config.enable_pop_buffer_merge,
            stay_ms=config.pop_ck_stay_buffer_time,
            before_due_ms=config.pop_ck_stay_buffer_time_out,
            count_max=config.pop_ck_max_buffer_size,
        )
        self._orders = Orders(table_file("consumerOrderInfo.json"), clock, call_later=call_later, on_free=self._freed)
        self._taker = Taker(
            store=store, offsets=offsets, buffer=self._buffer, orders=self._orders, broker_name=config.broker_name
        )
        self._pops = PopHandlers(
            config=config,
            taker=self._taker,
            topics=topics,
            groups=groups,
            stats=stats,
            filters=filters,
            next_revive_queue=revive_log.next_queue_id,
            is_full=lambda: self._buffer.is_full,
            read_cold=store.cold.read,
            clock=clock,
            choice=choice,
        )
        self._acks = AckHandlers(
            buffer=self._buffer, orders=self._orders, topics=topics, offsets=offsets, store=store, clock=clock
        )
        self.arrived = self._pops.arrived
        self.run = self._buffer.run
        self.modes.load()
        self._orders.load()
        self._buffer.open()

    def routes(self) -> dict[int, Route]:
        return {**self._pops.routes(), **self._acks.routes()}

    def tend(self) -> None:
        """Every 10 s: have the table of ordered pops written, and the revive log kept short."""
        self._orders.save()
        self._buffer.tend()

    def close(self) -> None:
        """Keep what is in flight for the next start."""
        self._pops.holds.close()
        self._pops.notices.close()
        self._orders.close()
        self._buffer.close()

    def drop(self, peer: Peer) -> None:
        """A connection closed."""
        self._pops.holds.drop(peer)
        self._pops.notices.drop(peer)

    def moved(self, group: str, topic: str, queue_id: int) -> None:
        """A tool has moved a group: pop from there."""
        self._taker.reset((group, topic, queue_id))
        self._pops.wake(group, topic, queue_id)

    def forget(self, *, group: str | None = None, topic: str | None = None) -> None:
        """A group or a topic is gone."""
        self._buffer.forget(group=group, topic=topic)
        self._orders.forget(group=group, topic=topic)
        self.modes.forget(group=group, topic=topic)

    def _freed(self, key: QueueKey) -> None:
        self._pops.wake(*key)
