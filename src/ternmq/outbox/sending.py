"""Sending rows through a producer: in batches, and in order where they have an order key (J3).

Rows without a key go in batches to any queue, all at once. Rows with a key go to the queue that its sharding key
chooses; what goes to one queue is one *line*: its batches are sent one after the other, and each waits for the one
before. When one fails, those behind it are not sent.

A batch that a broker refuses is sent again message by message, since only one of them may be at fault. Messages that
must not be part of a batch go alone: delayed ones, those that are compressed, and those of retry topics.

All copies of a message carry the id that its row has: consumers can tell them.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final

import msgspec

from ternmq.client.config import COMPRESSIONS
from ternmq.client.send.outgoing import Outgoing, prepare, prepare_batch, shrink
from ternmq.client.send.producer import Producer
from ternmq.client.send.queue_choice import by_sharding_key
from ternmq.client.send.validate import check_message
from ternmq.env import Clock
from ternmq.errors import InvalidMessage, InvalidName, TernError
from ternmq.message import Message, MessageQueue
from ternmq.names import RETRY_PREFIX
from ternmq.outbox.entry import Row
from ternmq.outbox.rules import Failure, failure_of

#: What the header of a record in a batch takes beside body and properties, generously.
_OVERHEAD_BYTES: Final = 256


@dataclass(slots=True)
class Results:
    """What became of the rows of one call; each is in one of the three."""

    sent: list[Row] = field(default_factory=list)
    failed: list[tuple[Row, Exception]] = field(default_factory=list)
    #: Held by one that failed, or by the end of the lease.
    unsent: list[Row] = field(default_factory=list)


class Parcel(msgspec.Struct, frozen=True, gc=False):
    """A row with its message."""

    row: Row
    message: Message


ParcelLine = list[list[Parcel]]


class RowSending:
    """Sends rows through a running producer.

    Args:
        producer: It must be running.
        namespace: That of the producer's client.
        new_id: Gives ids for rows without one.
        batch_bytes: Bound of a batch; 0: none is made.
        clock: For the end of leases.
    """

    def __init__(
        self, producer: Producer, *, namespace: str, new_id: Callable[[], str], batch_bytes: int, clock: Clock
    ) -> None:
        self._producer = producer
        self._namespace = namespace
        self._new_id = new_id
        self._batch_bytes = min(batch_bytes, producer.config.body_bytes_max)
        self._clock = clock

    async def send(self, rows: Sequence[Row], *, until: float) -> Results:
        """Send ``rows``, which stand in the order of their ids; no attempt lasts beyond ``until``, a monotonic time."""
        results = Results()
        parcels = self._unpacked(rows, results)
        queues = await self._queues(parcels, results)
        lines, left = plan(
            parcels,
            queues=queues,
            batch_bytes=self._batch_bytes,
            compress_from_bytes=self._producer.config.compress_from_bytes,
        )
        results.unsent += [parcel.row for parcel in left]
        await asyncio.gather(*(self._send_line(line, queue, results, until) for queue, line in lines))
        return results

    def _unpacked(self, rows: Sequence[Row], results: Results) -> list[Parcel]:
        """The messages of rows; what is none, and the rows that it holds, are in ``results``."""
        parcels = []
        bad: set[str] = set()
        for row in rows:
            if row.order_key in bad:
                results.unsent.append(row)
                continue
            if row.sendable is not None:
                parcels.append(Parcel(row, row.sendable))
                continue
            try:
                message = row.to_message()
                check_message(message, body_bytes_max=self._producer.config.body_bytes_max)
            except (InvalidMessage, InvalidName, TypeError) as error:
                results.failed.append((row, error))
                if row.order_key is not None:
                    bad.add(row.order_key)
            else:
                parcels.append(Parcel(row, message))
        return parcels

    async def _queues(self, parcels: list[Parcel], results: Results) -> Mapping[str, list[MessageQueue]]:
        """The queues of all topics that need an order; rows of a topic without a route leave ``parcels``."""
        queues: dict[str, list[MessageQueue]] = {}
        failures: dict[str, TernError] = {}
        for topic in {parcel.row.topic for parcel in parcels if parcel.row.order_key is not None}:
            try:
                queues[topic] = await self._producer.queues(topic)
            except TernError as error:
                failures[topic] = error
        if failures:
            failed = [(parcel, _error_of(parcel, failures)) for parcel in parcels]
            _hold(((parcel, error) for parcel, error in failed if error is not None), results)
            parcels[:] = [parcel for parcel, error in failed if error is None]
        return queues

    async def _send_line(self, line: ParcelLine, queue: MessageQueue | None, results: Results, until: float) -> None:
        held: set[str] = set()
        for lot in line:
            free = [parcel for parcel in lot if parcel.row.order_key not in held]
            results.unsent += [parcel.row for parcel in lot if parcel.row.order_key in held]
            if free:
                held |= await self._send_lot(free, queue, results, until)

    async def _send_lot(
        self, lot: list[Parcel], queue: MessageQueue | None, results: Results, until: float
    ) -> set[str]:
        """Send messages that travel together; returns the keys whose next rows must wait."""
        left_ms = int((until - self._clock.monotonic()) * 1000)
        keys = {parcel.row.order_key for parcel in lot if parcel.row.order_key is not None}
        if left_ms <= 0:
            results.unsent += [parcel.row for parcel in lot]
            return keys
        try:
            outgoing = self._prepared(lot)
            timeout_ms = min(self._producer.config.send_timeout_ms, left_ms)
            await self._producer.send_prepared(outgoing, queue=queue, timeout_ms=timeout_ms)
        except Exception as error:
            if len(lot) > 1 and failure_of(error) is not Failure.OUTAGE:
                return await self._send_one_by_one(lot, queue, results, until)
            _hold(((parcel, error) for parcel in lot), results)
            return keys
        results.sent += [parcel.row for parcel in lot]
        return set()

    async def _send_one_by_one(
        self, lot: list[Parcel], queue: MessageQueue | None, results: Results, until: float
    ) -> set[str]:
        held: set[str] = set()
        for parcel in lot:
            if parcel.row.order_key in held:
                results.unsent.append(parcel.row)
            else:
                held |= await self._send_lot([parcel], queue, results, until)
        return held

    def _prepared(self, lot: Sequence[Parcel]) -> Outgoing:
        ids = [parcel.row.message_id or self._new_id() for parcel in lot]
        if len(lot) > 1:
            return prepare_batch([parcel.message for parcel in lot], message_ids=ids, namespace=self._namespace)
        message, config = lot[0].message, self._producer.config
        outgoing = prepare(message, message_id=ids[0], namespace=self._namespace)
        if len(message.body) >= config.compress_from_bytes:
            shrink(outgoing, kind=COMPRESSIONS[config.compression], level=config.compress_level)
        return outgoing


def plan(
    parcels: Iterable[Parcel],
    *,
    queues: Mapping[str, list[MessageQueue]],
    batch_bytes: int,
    compress_from_bytes: int,
) -> tuple[list[tuple[MessageQueue | None, ParcelLine]], list[Parcel]]:
    """What is sent together, and what after what: lines with their queue. Pure.

    Lines do not wait for each other. A row of another program may go to another queue, or topic, than the one before it
    that has the same order key: such a row is left for the next time, and so are those behind it.
    """
    lines: dict[tuple[object, ...], tuple[MessageQueue | None, ParcelLine]] = {}
    open_bytes: dict[tuple[object, ...], int] = {}
    places: dict[str, tuple[object, ...]] = {}
    left: list[Parcel] = []
    for parcel in parcels:
        row, message = parcel.row, parcel.message
        size = row.size_bytes + _OVERHEAD_BYTES
        alone = (
            message.is_delayed
            or len(row.body) >= compress_from_bytes
            or row.topic.startswith(RETRY_PREFIX)
            or size > batch_bytes
        )
        queue = None
        if row.order_key is not None:
            found = queues[row.topic]
            # Another program's row may have an order key and no sharding key.
            queue = by_sharding_key(found, message if message.sharding_key else _keyed(message, row.order_key))
        # Unordered messages share batches, which do not wait for each other.
        place: tuple[object, ...] = (row.topic, queue) if queue is not None else (row.topic, message.wait_store_ok)
        if row.order_key is not None and places.setdefault(row.order_key, place) != place:
            places[row.order_key] = ()
            left.append(parcel)
            continue
        _, line = lines.setdefault(place, (queue, []))
        fits = (
            bool(line)
            and not alone
            and open_bytes[place] > 0
            and open_bytes[place] + size <= batch_bytes
            and line[-1][0].message.wait_store_ok == message.wait_store_ok
        )
        if fits:
            line[-1].append(parcel)
            open_bytes[place] += size
        else:
            line.append([parcel])
            # 0: nothing may join it.
            open_bytes[place] = 0 if alone else size
    planned: list[tuple[MessageQueue | None, ParcelLine]] = []
    for queue, line in lines.values():
        if queue is None:
            planned += [(None, [lot]) for lot in line]
        else:
            planned.append((queue, line))
    return planned, left


def _keyed(message: Message, key: str) -> Message:
    return Message(message.topic, b" ", sharding_key=key)


def _error_of(parcel: Parcel, failures: Mapping[str, TernError]) -> TernError | None:
    return failures.get(parcel.row.topic) if parcel.row.order_key is not None else None


def _hold(failures: Iterable[tuple[Parcel, Exception]], results: Results) -> None:
    """The first row of each key has failed; those behind it were not tried."""
    seen: set[str] = set()
    for parcel, error in failures:
        key = parcel.row.order_key
        if key is None or key not in seen:
            results.failed.append((parcel.row, error))
        else:
            results.unsent.append(parcel.row)
        if key is not None:
            seen.add(key)
