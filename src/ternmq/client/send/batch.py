"""Batches: cutting a long list into ones that a broker takes, and gathering single messages into them (E6). Pure.

A batch saves the cost of a frame, a request and a reply per message. ``split_batch`` is for programs that have many
messages at hand; ``Accumulator`` is behind ``auto_batch=True``, for those that send them one by one. Messages of one
topic go out as soon as fewer than ``PART_OUT_MAX`` requests of theirs are on their way; those that come meanwhile
gather, up to 32 KiB, and go out together with the next answer. So a program that sends little waits for nothing, and
one that sends much has larger batches the busier its broker is. Messages of a fixed queue have one request on
its way, whatever else differs between them. What is held in all is bounded; beyond that nothing is held back.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Iterator
from typing import Final, Generic, NamedTuple, TypeVar

from ternmq.client.send.validate import BODY_BYTES_MAX
from ternmq.message import Message, MessageQueue

T = TypeVar("T")

#: What a message takes in a batch besides its own texts: lengths and flag (22), the names of the system's properties,
#: the unique id (32 or 56), and room for a namespace.
_FIXED_BYTES: Final = 256
#: Requests of one topic on their way, beyond which messages gather. With two, the broker works on one while this
#: program works on the answers of the other; with more, batches only become smaller.
PART_OUT_MAX: Final = 2
#: The same for batches that are full: they gain nothing by waiting, but a slow broker must slow its senders down.
FULL_OUT_MAX: Final = 8


def packed_bytes(message: Message) -> int:
    """What a message takes in a batch, at most."""
    keys = message.keys
    if not message.properties and type(keys) is str:
        text = f"{message.tags}{keys}{message.sharding_key}"
        if text.isascii():
            return len(message.body) + _FIXED_BYTES + len(text)
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
    timeout_ms: int


class OpenBatch(Generic[T]):
    """Messages that wait for company; ``waiters`` has what each sender waits for, in the same order."""

    __slots__ = ("is_full", "key", "messages", "opened_ms", "total_bytes", "waiters")

    def __init__(self, key: BatchKey, opened_ms: int) -> None:
        self.key = key
        self.opened_ms = opened_ms
        self.messages: list[Message] = []
        self.waiters: list[T] = []
        self.total_bytes = 0
        #: Nothing more is added.
        self.is_full = False


class _Gathering(Generic[T]):
    """The batches of one key, or of one fixed queue, oldest first; only the last one is open."""

    __slots__ = ("batches", "is_ordered", "is_urgent", "out")

    def __init__(self, *, is_ordered: bool) -> None:
        #: Of a fixed queue.
        self.is_ordered = is_ordered
        self.batches: deque[OpenBatch[T]] = deque()
        #: Requests on their way.
        self.out = 0
        #: No more could be held: all goes out, whatever is on its way.
        self.is_urgent = False

    def may_send(self, batch: OpenBatch[T], *, is_due: bool) -> bool:
        if self.is_urgent:
            return True
        if self.is_ordered:
            # One after the other: a batch that a busy broker refuses goes again, and must not be overtaken.
            return self.out == 0 and (batch.is_full or is_due)
        return self.out < FULL_OUT_MAX if batch.is_full else is_due and self.out < PART_OUT_MAX


class Accumulator(Generic[T]):
    """Gathers messages by key. The time goes in, batches to send come out."""

    def __init__(self, *, batch_bytes: int, wait_ms: int, total_bytes: int, alone_bytes: int | None = None) -> None:
        """A message with a body of ``alone_bytes`` or more is a batch of its own."""
        self._batch_bytes = batch_bytes
        self._wait_ms = wait_ms
        self._total_bytes = total_bytes
        self._alone_bytes = batch_bytes if alone_bytes is None else alone_bytes
        self._lines: dict[tuple[object, ...], _Gathering[T]] = {}
        #: Lines that may have something to send.
        self._changed: dict[_Gathering[T], None] = {}
        #: What the messages that are held take in batches, at most.
        self.held_bytes = 0

    def add(self, key: tuple[str, MessageQueue | None, bool, int], message: Message, waiter: T, *, now_ms: int) -> None:
        """Take a message in; ``key`` has the fields of a ``BatchKey``."""
        place = _place(key)
        line = self._lines.get(place)
        if line is None:
            line = self._lines[place] = _Gathering(is_ordered=key[1] is not None)
        message_bytes = packed_bytes(message)
        batches = line.batches
        batch = batches[-1] if batches else None
        is_alone = len(message.body) >= self._alone_bytes
        if batch is not None and (
            is_alone or batch.total_bytes + message_bytes > self._batch_bytes or (line.is_ordered and batch.key != key)
        ):
            batch.is_full = True
        if batch is None or batch.is_full:
            batch = OpenBatch(BatchKey(*key), now_ms)
            batches.append(batch)
        batch.messages.append(message)
        batch.waiters.append(waiter)
        batch.total_bytes += message_bytes
        if is_alone or batch.total_bytes >= self._batch_bytes:
            batch.is_full = True
        self.held_bytes += message_bytes
        if self.held_bytes > self._total_bytes:
            line.is_urgent = True
        self._changed[line] = None

    def ready(self, *, now_ms: int) -> list[OpenBatch[T]]:
        """The batches to send now. Each must be told of by ``ended`` later."""
        ready = []
        changed, self._changed = self._changed, {}
        for line in changed:
            batches = line.batches
            while batches and line.may_send(batches[0], is_due=batches[0].opened_ms + self._wait_ms <= now_ms):
                ready.append(self._take(line))
            line.is_urgent = False
            if batches and self._wait_ms and line.may_send(batches[0], is_due=True):
                # Not due yet; nothing else would bring it up again.
                self._changed[line] = None
        return ready

    def all(self) -> list[OpenBatch[T]]:
        """Every batch, due or not: the producer closes. Each must be told of by ``ended`` later.

        Those of a fixed queue go one after the other also now: ``ready`` has the next one when that before has ended.
        """
        self._wait_ms = 0
        return [
            self._take(line)
            for line in self._lines.values()
            for _ in range(min(len(line.batches), 1 - line.out) if line.is_ordered else len(line.batches))
        ]

    def ended(self, key: BatchKey) -> None:
        """The request of a batch has ended; ``ready`` may have more now."""
        place = _place(key)
        line = self._lines[place]
        line.out -= 1
        if line.batches:
            self._changed[line] = None
        elif not line.out:
            del self._lines[place]

    @property
    def next_due_ms(self) -> int | None:
        """When to ask for ``ready`` batches if nothing else happens before; None when nothing waits for its time."""
        return min((line.batches[0].opened_ms + self._wait_ms for line in self._changed if line.batches), default=None)

    def _take(self, line: _Gathering[T]) -> OpenBatch[T]:
        batch = line.batches.popleft()
        line.out += 1
        self.held_bytes -= batch.total_bytes
        return batch


def _place(key: tuple[str, MessageQueue | None, bool, int]) -> tuple[object, ...]:
    """What gathers together: with a fixed queue all of its messages, as they keep their order."""
    return key if key[1] is None else key[:2]
