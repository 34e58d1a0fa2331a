"""An application's own offset store, as a consumer uses it (D4, F6).

The application's object knows queues by the names that the application knows, and may raise anything: a database that
is away, a table that is missing. Here names are translated, and errors become what the consumer expects: a load that
failed is tried again with the next rebalance, a save that failed is logged and comes again.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping
from operator import index

from ternmq.client.connect.namespace import unwrap
from ternmq.client.consume.offsets import OffsetStore
from ternmq.errors import OffsetStoreFailed
from ternmq.message import MessageQueue

log = logging.getLogger(__name__)


class GivenStore:
    """The ``OffsetStore`` of an application, with the names of the wire outside."""

    def __init__(self, store: OffsetStore, namespace: str) -> None:
        self._store = store
        self._namespace = namespace

    async def load(self, queue: MessageQueue) -> int | None:
        """Raises ``OffsetStoreFailed``."""
        try:
            offset = await self._store.load(self._named(queue))
            # Databases give texts and decimals, too: an error here is told and tried again, and ends no consumer.
            return None if offset is None else index(offset)
        except Exception as error:
            raise OffsetStoreFailed(
                f"the offset store cannot load the offset of {queue}: {type(error).__name__}: {error}"
            ) from error

    async def save(self, offsets: Mapping[MessageQueue, int], *, wait: bool) -> None:
        if offsets:
            try:
                await self.store(offsets, wait=wait)
            except OffsetStoreFailed as error:
                log.warning("%s; trying again", error)

    async def store(self, offsets: Mapping[MessageQueue, int], *, wait: bool = True) -> None:
        """As ``save``; raises ``OffsetStoreFailed``."""
        try:
            await self._store.save({self._named(queue): offset for queue, offset in offsets.items()}, wait=wait)
        except Exception as error:
            raise OffsetStoreFailed(
                f"the offset store cannot save {len(offsets)} offsets: {type(error).__name__}: {error}"
            ) from error

    def _named(self, queue: MessageQueue) -> MessageQueue:
        return queue._replace(topic=unwrap(self._namespace, queue.topic))
