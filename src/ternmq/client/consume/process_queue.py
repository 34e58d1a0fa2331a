"""What one consumer holds of one queue: messages fetched and not yet done (F7, M2).

Three places on the line of queue offsets::

    … done │ smallest undone … in flight, done here and there … │ next to fetch …
           └ progress                                            └ next_offset

*Progress* is what may be committed: the smallest queue offset that is not done, or ``next_offset`` when nothing is in
flight. Listeners finish in any order, so what is done behind a slow message is remembered only by its absence; after a
crash it is delivered again. That is the price of "at least once", and why progress never passes undone work.

``next_offset`` may lie behind the last message by more than one: the broker skips what the subscription does not want.
Committing it once all is done saves the group from reading the skipped part again.

Cost: messages arrive in order, so an insertion is an append to ``_order``; a removal takes a key out of ``_messages``,
and only when it was the smallest are the keys that are gone popped from the front of ``_order``, each once. (Asking a
dict for its first key instead would walk over all holes at its front again and again.)

Pure: no clock, no loop. A process queue belongs to one owner and one thread.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Sequence
from operator import lt
from typing import Final, Generic, TypeVar

from ternmq.message import MessageQueue, ReceivedMessage

M = TypeVar("M", bound=ReceivedMessage)


class ProcessQueue(Generic[M]):
    """The messages in flight of one queue, from ``next_offset`` (where to start) on."""

    __slots__ = (
        "_messages",
        "_order",
        "body_bytes",
        "dropped",
        "last_fetched_ms",
        "next_offset",
        "queue",
    )

    def __init__(self, queue: MessageQueue, next_offset: int) -> None:
        self.queue: Final = queue
        #: The queue offset to fetch from. All before it was put here or was not wanted.
        self.next_offset = next_offset
        #: The sum of the bodies in flight.
        self.body_bytes = 0
        #: The queue now belongs to another member: what still runs here must not change any progress.
        self.dropped = False
        #: When the last pull was answered, for tools (F10); 0: never.
        self.last_fetched_ms = 0
        self._messages: dict[int, M] = {}
        self._order: deque[int] = deque()

    def __len__(self) -> int:
        """How many messages are in flight."""
        return len(self._messages)

    def __repr__(self) -> str:
        return f"<ProcessQueue {self.queue} in flight {len(self)} progress {self.progress} next {self.next_offset}>"

    @property
    def progress(self) -> int:
        """The queue offset that may be committed: nothing before it is undone."""
        return self._order[0] if self._order else self.next_offset

    @property
    def span(self) -> int:
        """The distance from the smallest undone message to the last one fetched behind it."""
        return self._order[-1] - self._order[0] if self._order else 0

    def put(self, messages: Sequence[M], next_offset: int) -> Sequence[M]:
        """Take what a fetch brought, and go on at ``next_offset``. Returns the messages that are new here.

        A broker that answers with more than it was asked for (or in another order) does no harm: what lies before the
        last ``next_offset`` is not taken again.
        """
        begin, order = self.next_offset, self._order
        offsets = [message.queue_offset for message in messages]
        if offsets and (offsets[0] < begin or not all(map(lt, offsets, offsets[1:]))):
            messages = _ordered(messages, begin)
            offsets = [message.queue_offset for message in messages]
        self._messages.update(zip(offsets, messages, strict=True))
        order.extend(offsets)
        self.body_bytes += sum([len(message.body) for message in messages])
        self.next_offset = max(begin, next_offset, order[-1] + 1 if order else 0)
        return messages

    def done(self, messages: Iterable[M]) -> None:
        """Remove messages that were consumed, sent back or given up; those not in flight are ignored."""
        held, order = self._messages, self._order
        pop = held.pop
        gone = [len(message.body) for message in messages if pop(message.queue_offset, None) is not None]
        self.body_bytes -= sum(gone)
        if not held:
            order.clear()
        while order and order[0] not in held:
            order.popleft()

    def replace(self, message: M) -> None:
        """Hold this object in place of the one with the same queue offset and body; ignored if none is in flight."""
        if message.queue_offset in self._messages:
            self._messages[message.queue_offset] = message

    def in_flight(self) -> list[M]:
        """All messages in flight, by queue offset."""
        return [self._messages[offset] for offset in self._order if offset in self._messages]


def _ordered(messages: Sequence[M], begin: int) -> list[M]:
    by_offset = {message.queue_offset: message for message in messages if message.queue_offset >= begin}
    return [by_offset[offset] for offset in sorted(by_offset)]
