"""A send of a thread that waits for it: the thread makes the first attempt itself, on a line (E1, E3, E4).

``SyncProducer`` sends like this. The calling thread makes the message ready and chooses queue and broker. If there is a
line to the broker (``lines``) which no other thread uses, it sends, and receives the answer. A plain OK is the end. All
else goes to the loop, where one machine knows what follows: ``go_on`` makes an ``OngoingSend`` that is where this one
is, with the rest of its time.

What a line cannot do goes to the loop from the start: sends with hooks, which run on the loop's thread; all sends while
the latency of brokers is measured; without a route, or without a connection of the loop, whose heartbeat tells the
broker of this client; to a broker that was busy.

Threads read here what belongs to the loop. That is safe without a lock, as each is one look into a dict that is
changed by single calls (routes, connections, paces, prepared headers), or a value that never changes (a route). Whose
turn it is among the queues is read and written in two steps: two threads at the same moment may get the same queue. The
ids of messages must differ, so threads have a source of their own with a lock (``ThreadsIds``).
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from ternmq.client.send.hooks import SendMode
from ternmq.client.send.lines import SendLine
from ternmq.client.send.ongoing import OngoingSend, Pick, Promise, Retry
from ternmq.client.send.outgoing import Outgoing
from ternmq.errors import LocalProtocolError, NetworkError, TernError
from ternmq.message import MessageQueue, SendReceipt
from ternmq.net.limits import OUTGOING
from ternmq.net.line import CallLine
from ternmq.wire.codes import ResponseCode
from ternmq.wire.header import Response

if TYPE_CHECKING:
    from ternmq.client.send.sender import Sender

_SUCCESS: Final = int(ResponseCode.SUCCESS)


class ThreadSend:
    """A message made ready by the thread that waits for its receipt."""

    __slots__ = ("_address", "_began", "_end", "_outgoing", "_pick", "_queue", "_sender", "_timeout_ms")

    def __init__(self, sender: Sender, outgoing: Outgoing, *, pick: Pick | None, timeout_ms: int) -> None:
        """``pick`` fixes the queue, and then nothing is retried."""
        self._sender = sender
        self._outgoing = outgoing
        self._pick = pick
        self._timeout_ms = timeout_ms
        self._began = sender.now()
        #: Without a queue or an address, the loop finds them, or says what is missing.
        self._queue: MessageQueue | None = None
        self._address = ""
        #: How the first attempt has ended, if it was made, and not with OK.
        self._end: Response | NetworkError | None = None

    # In the thread.

    def attempt(self) -> SendReceipt | None:
        """Make the first attempt, if there is a free line; None if it was not made, or did not end with OK."""
        sender = self._sender
        instance = sender.instance
        route = instance.routes.known(self._outgoing.topic)
        if route is None or not route.to_write:
            return None
        self._queue = queue = sender.choose(route) if self._pick is None else self._pick(route)
        if route.address(queue.broker_name) is None:
            return None
        self._address = address = sender.address(route, queue)
        if instance.connections.get(address) is None:
            # The loop makes one, whose heartbeat tells the broker of this client.
            return None
        paces = sender.paces.by_place
        if paces and (address, self._outgoing.topic) in paces:
            return None
        line = instance.lines.to(address)
        connection = line.take(self._began)
        if connection is None:
            instance.lines.open_when_due(line)
            return None
        return self._attempt_on(line, connection, queue)

    def _attempt_on(self, line: SendLine, connection: CallLine, queue: MessageQueue) -> SendReceipt | None:
        outgoing = self._outgoing
        is_sound = False
        try:
            opaque = connection.next_opaque()
            buffers = self._sender.heads.request(outgoing, queue.queue_id, opaque, False, OUTGOING.frame_max_length)
            answer = connection.call(opaque, buffers, self._began + self._timeout_ms / 1000)
            is_sound = True
        except NetworkError as error:
            self._end = error
            return None
        except LocalProtocolError:
            # It is too large to be sent, and the loop will say so.
            is_sound = True
            return None
        finally:
            # Whatever ends it, an interrupt of the thread, too: then an answer may come that is not the next one's.
            line.give_back(is_sound=is_sound)
        if not isinstance(answer, Response):
            return outgoing.stored(answer, queue)
        if answer.code == _SUCCESS:
            try:
                return outgoing.receipt(answer, queue)
            except TernError:
                # The same error will come of it again, where it is known what to do.
                pass
        self._end = answer
        return None

    # On the loop.

    def go_on(self, receipt: Promise) -> OngoingSend:
        """Begin on the loop, or go on there after an attempt that did not end with OK."""
        sender, timeout_ms, end = self._sender, self._timeout_ms, self._end
        left_ms = timeout_ms
        if end is not None:
            left_ms = max(0, timeout_ms - int((sender.now() - self._began) * 1000))
        retry = Retry.OTHER_BROKER if self._pick is None else Retry.NONE
        sending = OngoingSend(
            sender,
            self._outgoing,
            SendMode.SYNC,
            retry,
            receipt,
            pick=self._pick,
            timeout_ms=timeout_ms,
            left_ms=left_ms,
        )
        sending.go_on_from(self._queue, self._address, end)
        return sending
