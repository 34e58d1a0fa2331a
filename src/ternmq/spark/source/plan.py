"""From queues and bounds to tasks, and from a rate limit to bounds; a core (U1).

A *slice* is a part of one queue, read by one task. A long queue has many slices, so that all tasks have work even if
one queue holds all messages. Slices of different queues alternate in the list: tasks that start together read from
different brokers.

``trim`` shares a limit fairly: all queues get the same, and the unused share of a short queue goes to the others. So no
queue starves, however long the others are. If there is anything to read, at least one message is read.
"""

from __future__ import annotations

from collections.abc import Mapping
from itertools import zip_longest

from pyspark.sql.datasource import InputPartition

from ternmq.message import MessageQueue


class Slice(InputPartition):
    """The queue offsets ``start`` … before ``end`` of one queue. Sent to the executor that reads it."""

    def __init__(self, queue: MessageQueue, start: int, end: int) -> None:
        super().__init__((queue, start, end))
        self.queue = queue
        self.start = start
        self.end = end

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Slice) and self.value == other.value

    def __hash__(self) -> int:
        return hash(self.value)


def cut(
    starts: Mapping[MessageQueue, int],
    ends: Mapping[MessageQueue, int],
    *,
    slice_messages: int,
    min_partitions: int | None = None,
) -> list[Slice]:
    """Slices of ``slice_messages`` at most; smaller ones if there would be fewer than ``min_partitions``."""
    spans = [(queue, starts[queue], end) for queue, end in sorted(ends.items()) if starts[queue] < end]
    if min_partitions is not None:
        total = sum(end - start for _, start, end in spans)
        slice_messages = max(1, min(slice_messages, total // min_partitions))
    by_queue = [
        [Slice(queue, at, min(at + slice_messages, end)) for at in range(start, end, slice_messages)]
        for queue, start, end in spans
    ]
    return [one for turn in zip_longest(*by_queue) for one in turn if one is not None]


def trim(
    starts: Mapping[MessageQueue, int],
    ends: Mapping[MessageQueue, int],
    limit: int,
    *,
    cost: Mapping[MessageQueue, float] | None = None,
) -> dict[MessageQueue, int]:
    """The ends of the next step: ``limit`` messages at most over all queues.

    With ``cost`` (for example bytes per message in each queue) the limit counts that instead. Empty queues, and queues
    whose end is before their start, keep their end.
    """
    new_ends = dict(ends)
    waiting = {queue: end - starts[queue] for queue, end in ends.items() if end > starts[queue]}
    price = {queue: max(cost.get(queue, 1.0), 1e-9) if cost is not None else 1.0 for queue in waiting}
    if sum(count * price[queue] for queue, count in waiting.items()) <= limit:
        return new_ends
    left = float(limit)
    # Short queues first: their unused share is available for the next ones.
    order = sorted(waiting, key=lambda queue: (waiting[queue] * price[queue], queue))
    granted = 0
    for taken, queue in enumerate(order):
        share = left / (len(order) - taken)
        count = min(waiting[queue], int(share / price[queue] + 1e-6))
        left -= count * price[queue]
        granted += count
        new_ends[queue] = starts[queue] + count
    if not granted:
        # A limit of less than one message per queue must not stop the read.
        first = order[0]
        new_ends[first] = starts[first] + 1
    return new_ends
