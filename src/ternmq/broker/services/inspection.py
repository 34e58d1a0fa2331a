"""What stands in the files of a queue, for tools that look for the reason of a strange delivery (D6, K1).

An entry says where a record lies, and what filters see of it before the record is read: the hash of its tag, and on
brokers with ``enableCalcFilterBitMap`` a unit with a Bloom map. For a group with members, ``may_pass`` says whether
its filter lets the entry pass. An SQL filter looks at the record afterwards, so such a message may still be left out.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from ternmq.broker.services.access import Access, Way
from ternmq.broker.tables.clients import Clients
from ternmq.broker.tables.filters import Filters, Wanted
from ternmq.broker.tables.topics import Topics
from ternmq.errors import BrokerRefused, InvalidParameter
from ternmq.store.read.query import RawEntry
from ternmq.store.store import MessageStore
from ternmq.wire.bodies.clients import SubscriptionData
from ternmq.wire.bodies.filters import GroupFilter

#: Entries of one answer; each has some 200 bytes there.
ENTRIES_MAX: Final = 1_000
#: Bytes of the Bloom maps of one answer, which shows each bit as a character.
MAP_BYTES_MAX: Final = 64 * 1024
#: Entries that are read at once.
_PORTION: Final = 32


@dataclass(slots=True, frozen=True)
class SeenEntry:
    """An entry of a queue, and whether the group that was asked for gets past it; False without a group."""

    entry: RawEntry
    may_pass: bool


@dataclass(slots=True, frozen=True)
class QueueSlice:
    """Entries of a queue that follow each other, and what a group says of them."""

    min_offset: int
    max_offset: int
    entries: list[SeenEntry]
    #: Of the group, if one was asked for and it has members.
    subscription: SubscriptionData | None = None
    filter: GroupFilter | None = None
    #: Why it is not known what the group wants.
    trouble: str = ""


class Inspection:
    """All methods belong to the broker's loop."""

    def __init__(
        self, *, access: Access, topics: Topics, store: MessageStore, clients: Clients, filters: Filters
    ) -> None:
        self._access = access
        self._topics = topics
        self._store = store
        self._clients = clients
        self._filters = filters

    def queue(self, topic: str, queue_id: int, queue_offset: int, *, count_max: int, group: str = "") -> QueueSlice:
        """Entries from ``queue_offset`` on, at most ``count_max`` and ``ENTRIES_MAX``; none outside of the queue.

        Raises ``TopicMissing``, ``NotFound`` for halves of transactions, and ``InvalidParameter`` for a queue that the
        topic does not have.
        """
        self._access.may_read(None, topic, Way.QUERY)
        config = self._topics.find(topic)
        # A topic that was made smaller still has the files of its other queues.
        queues = max(config.read_queue_nums, config.write_queue_nums)
        if not (0 <= queue_id < queues or self._store.max_offset(topic, queue_id) > 0):
            raise InvalidParameter(f"{queue_id}@{topic} is not exist! The topic has {queues} queues, from 0 on")
        wanted: Wanted | None = None
        subscription, trouble = None, ""
        if group:
            subscription = self._clients.subscription(group, topic)
            try:
                wanted = self._filters.of_heartbeat(group, topic, 0)
            except BrokerRefused as error:
                trouble = str(error) if subscription is not None else f"{group}@{topic} is not online!"
        return QueueSlice(
            self._store.min_offset(topic, queue_id),
            self._store.max_offset(topic, queue_id),
            [
                SeenEntry(entry, wanted is not None and _may_pass(entry, wanted))
                for entry in self._entries(topic, queue_id, queue_offset, min(count_max, ENTRIES_MAX))
            ],
            subscription,
            self._filters.of_group(group, topic) if subscription is not None else None,
            trouble,
        )

    def _entries(self, topic: str, queue_id: int, queue_offset: int, count_max: int) -> list[RawEntry]:
        """So many entries, also over the end of a file; fewer if their Bloom maps are large."""
        found: list[RawEntry] = []
        map_bytes = 0
        while len(found) < count_max and map_bytes < MAP_BYTES_MAX:
            count = min(count_max - len(found), _PORTION)
            more = self._store.raw_entries(topic, queue_id, queue_offset + len(found), count)
            if not more:
                break
            found += more
            map_bytes += sum(len(entry.unit.bits) for entry in more if entry.unit is not None)
        return found


def _may_pass(entry: RawEntry, wanted: Wanted) -> bool:
    """As a pull sees it: what has no unit is judged by its tag, and a missing unit passes."""
    if entry.is_filler:
        return False
    if entry.has_address and (entry.unit is None or wanted.may_pass is not None):
        return entry.unit is None or wanted.may_pass is None or wanted.may_pass(entry.unit)
    tags_code = entry.field if entry.unit is None else entry.unit.tags_code
    return wanted.matches is None or wanted.matches(tags_code)
