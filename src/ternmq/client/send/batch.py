"""Batches: cutting a long list into ones that a broker takes, and gathering single messages into them (E6). Pure.

A batch saves the cost of a frame, a request and a reply per message. ``split_batch`` is for programs that have many
messages at hand; ``Accumulator`` is behind ``auto_batch=True``, for those that send them one by one: messages of one
topic and queue that come within 10 ms travel together, up to 32 KiB. What is held in all is bounded; beyond that a
message goes out alone.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from typing import Final, Generic, NamedTuple, TypeVar

from ternmq.client.send.validate import BODY_BYTES_MAX
from ternmq.message import Message, MessageQueue

T = TypeVar("T")

#: What a message takes in a batch besides its own texts: lengths and flag (22), the names of the system's properties,
#: the unique id (32 or 56), and room for a namespace.
_FIXED_BYTES: Final = 256


def packed_bytes(message: Message) -> int:
    """What a message takes in a batch, at most."""
    texts = [message.tags, message.keys_text, message.sharding_key]
    for pair in message.properties.items():
        texts += pair
    # Two more for the ends of each name and value. What is no text is measured here and refused when it is sent.
    return len(message.body) + _FIXED_BYTES + len("..".join(texts).encode(errors="surrogatepass"))


def split_batch(messages: Iterable[Message], *, bytes_max: int = BODY_BYTES_MAX) -> Iterator[list[Message]]:
    """Cut messages into batches that fit ``bytes_max``, in order; one that is too large alone stands alone.

    ::

        for part in split_batch(messages):
            await producer.send_batch(part)
    """
    part: list[Message] = []
    part_bytes = 0
    for message in messages:
        message_bytes = packed_bytes(message)
        if part and part_bytes + message_bytes > bytes_max:
            yield part
            part, part_bytes = [], 0
        part.append(message)
        part_bytes += message_bytes
    if part:
        yield part


class BatchKey(NamedTuple):
    """What the messages of one batch have in common. Without a queue, one is chosen when the batch goes out."""

    topic: str
    queue: MessageQueue | None
    wait_store_ok: bool


@dataclass(slots=True)
class OpenBatch(Generic[T]):
    """Messages that wait for company; ``waiters`` has what each sender waits for, in the same order."""

    key: BatchKey
    due_ms: int
    messages: list[Message] = field(default_factory=list)
    waiters: list[T] = field(default_factory=list)
    total_bytes: int = 0


class Accumulator(Generic[T]):
    """Gathers messages by key. The time goes in, batches to send come out."""

    def __init__(self, *, batch_bytes: int, wait_ms: int, total_bytes: int) -> None:
        self._batch_bytes = batch_bytes
        self._wait_ms = wait_ms
        self._total_bytes = total_bytes
        #: In the order in which they are due, since all wait equally long.
        self._open: dict[BatchKey, OpenBatch[T]] = {}
        self._held_bytes = 0

    def add(self, key: BatchKey, message: Message, waiter: T, *, now_ms: int) -> list[OpenBatch[T]]:
        """Take a message in, and return what is to be sent at once because it is full or cannot be held."""
        message_bytes = packed_bytes(message)
        full: list[OpenBatch[T]] = []
        batch = self._open.get(key)
        if batch is not None and batch.total_bytes + message_bytes > self._batch_bytes:
            # It goes first, so that messages of one queue keep their order.
            full.append(self._close(batch))
            batch = None
        if batch is None:
            batch = OpenBatch(key, now_ms + self._wait_ms)
            if message_bytes < self._batch_bytes and self._held_bytes + message_bytes <= self._total_bytes:
                self._open[key] = batch
            else:
                full.append(batch)
        elif self._held_bytes + message_bytes > self._total_bytes:
            full.append(self._close(batch))
        batch.messages.append(message)
        batch.waiters.append(waiter)
        batch.total_bytes += message_bytes
        if key in self._open:
            self._held_bytes += message_bytes
        return full

    def due(self, *, now_ms: int) -> list[OpenBatch[T]]:
        """The batches whose time has come."""
        ready = []
        for batch in self._open.values():
            if batch.due_ms > now_ms:
                break
            ready.append(batch)
        return [self._close(batch) for batch in ready]

    def all(self) -> list[OpenBatch[T]]:
        """Every batch, due or not: the producer closes."""
        return [self._close(batch) for batch in list(self._open.values())]

    @property
    def next_due_ms(self) -> int | None:
        """When the next batch is due; None when nothing is held."""
        return next((batch.due_ms for batch in self._open.values()), None)

    def _close(self, batch: OpenBatch[T]) -> OpenBatch[T]:
        del self._open[batch.key]
        self._held_bytes -= batch.total_bytes
        return batch
