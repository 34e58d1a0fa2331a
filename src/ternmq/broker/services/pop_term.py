"""Pop on a master, for one term (F9): what is in flight, and what brings it back when it is not acknowledged.

Made when a term begins: the revive log is folded, so check points of earlier terms (of this broker or another) are in
flight again. Dropped when it ends: nothing more is revived or committed. What was in memory only is then forgotten, as
after a crash: it lies behind the committed offset and is popped again by the next master. A broker that stops as a
master writes it first (``close``).
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable

from ternmq import names
from ternmq.broker.config import BrokerConfig
from ternmq.broker.tables.groups import Groups
from ternmq.broker.tables.offsets import Offsets
from ternmq.broker.tables.stats import Stats
from ternmq.broker.tables.topics import Topics
from ternmq.env import Clock
from ternmq.errors import TernError
from ternmq.files import TableFile
from ternmq.pop.buffer import PopBuffer
from ternmq.pop.checkpoints import GroupQueue
from ternmq.pop.orderly import SAVE_S, Orders
from ternmq.pop.revive import Reviver
from ternmq.pop.revive_log import ReviveLog
from ternmq.pop.take import PopTaker
from ternmq.store.store import MessageStore

log = logging.getLogger(__name__)


class PopTerm:
    """A runner (``broker.roles``). All methods belong to the broker's loop.

    ``on_free`` is told of each ordered queue that can be popped again, ``on_end`` that the term is over.
    """

    def __init__(
        self,
        config: BrokerConfig,
        *,
        orders_file: TableFile,
        store: MessageStore,
        store_host: bytes,
        topics: Topics,
        groups: Groups,
        offsets: Offsets,
        stats: Stats,
        clock: Clock,
        on_free: Callable[[GroupQueue], None],
        on_end: Callable[[PopTerm, TernError], None],
    ) -> None:
        """Raises ``CorruptFile`` if the table of ordered pops cannot be read."""
        call_later = asyncio.get_running_loop().call_later
        self._on_end = on_end
        self._revive_log = ReviveLog(
            store,
            offsets,
            topic=names.revive_topic(config.broker_cluster_name),
            queues=config.revive_queue_num,
            broker_name=config.broker_name,
            store_host=store_host,
            now_ms=clock.now_ms,
        )
        self._reviver = Reviver(
            store=store,
            offsets=offsets,
            topics=topics,
            has_group=lambda group: groups.get(group) is not None,
            retry_v2=config.enable_retry_topic_v2,
            count=stats.put,
        )
        self.buffer = PopBuffer(
            store=store,
            offsets=offsets,
            revive_log=self._revive_log,
            reviver=self._reviver,
            clock=clock,
            call_later=call_later,
        )
        self.orders = Orders(orders_file, clock, call_later=call_later, on_free=on_free)
        self.taker = PopTaker(
            store=store, offsets=offsets, buffer=self.buffer, orders=self.orders, broker_name=config.broker_name
        )
        self.next_revive_queue = self._revive_log.next_queue_id
        self.apply(config)
        self.orders.load()
        self.buffer.open()

    def apply(self, config: BrokerConfig) -> None:
        self._reviver.apply(retry_v2=config.enable_retry_topic_v2)
        self.buffer.apply(
            enabled=config.enable_pop_buffer_merge,
            stay_ms=config.pop_ck_stay_buffer_time,
            before_due_ms=config.pop_ck_stay_buffer_time_out,
            count_max=config.pop_ck_max_buffer_size,
        )

    async def run(self) -> None:
        """Revive what is due, and tend the tables, until cancelled."""
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(self.buffer.run())
            tasks.create_task(self._tend())

    async def _tend(self) -> None:
        """Every 10 s: have the table of ordered pops written, and the revive log kept short."""
        while True:
            await asyncio.sleep(SAVE_S)
            try:
                self.orders.save()
                self.buffer.tend()
            except Exception:
                log.exception("tending the pops failed; retrying")

    def stop(self, reason: TernError) -> None:
        """The term is over (``roles.Runner``)."""
        self.orders.close()
        self.buffer.stop()
        self._on_end(self, reason)

    def close(self) -> None:
        """The broker stops: write what is in flight, for the next start. Raises ``StoreError``."""
        self.orders.close()
        self.buffer.close()
