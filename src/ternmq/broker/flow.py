"""Flow control (M1): the lanes on which requests wait for the loop, and what a broker refuses rather than delays.

Five classes of work that cannot starve each other (``net.lanes``). Each has a bound on its length and on the time a
request may wait in it; beyond, the sender is told SYSTEM_BUSY at once and may turn to another broker:

    send    messages                           10,000 requests   200 ms
    pull    consumers fetching messages       100,000             5 s
    query   messages by id and key             20,000
    client  heartbeats, offsets, locks         50,000            31 s
    admin   topics, groups, tools              10,000             5 s

and 128 MiB each.

RocketMQ's fifth check, «page cache busy» (its put lock held for more than a second), has no lock to look at here:
an append is a copy into memory on the loop itself. What remains of it is the disk that does not keep up with
SYNC_FLUSH: ``broker.services.intake`` bounds the sends that wait for it.
"""

from __future__ import annotations

import heapq
from typing import Final

from ternmq.broker.config import BrokerConfig
from ternmq.net.lanes import LaneConfig, Lanes

SEND: Final = "send"
PULL: Final = "pull"
QUERY: Final = "query"
CLIENT: Final = "client"
ADMIN: Final = "admin"

#: Groups whose time is told, those that took most.
GROUPS_SHOWN: Final = 20


def lanes(config: BrokerConfig) -> tuple[LaneConfig, ...]:
    """The lanes of one broker."""
    bytes_max = config.max_queued_request_bytes
    return tuple(
        LaneConfig(name, capacity, wait_max_ms, bytes_max)
        for name, capacity, wait_max_ms in (
            (SEND, config.send_thread_pool_queue_capacity, config.wait_time_mills_in_send_queue),
            (PULL, config.pull_thread_pool_queue_capacity, config.wait_time_mills_in_pull_queue),
            (QUERY, config.query_thread_pool_queue_capacity, 0),
            (CLIENT, config.heartbeat_thread_pool_queue_capacity, config.wait_time_mills_in_heartbeat_queue),
            (ADMIN, config.admin_broker_thread_pool_queue_capacity, config.wait_time_mills_in_admin_broker_queue),
        )
    )


def busiest_groups(lanes: Lanes) -> list[tuple[str, float, int]]:
    """How much of the broker's time the pulls and acks of the busiest groups took: group, seconds, slices (R4)."""
    spent = dict(lanes[PULL].spent)
    for group, (seconds, slices) in lanes[CLIENT].spent.items():
        before = spent.get(group, (0.0, 0))
        spent[group] = before[0] + seconds, before[1] + slices
    busiest = heapq.nlargest(GROUPS_SHOWN, spent.items(), key=lambda item: item[1])
    return [(group, seconds, slices) for group, (seconds, slices) in busiest]
