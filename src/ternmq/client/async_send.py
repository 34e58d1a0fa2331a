"""A send whose caller does not wait: calls and callbacks instead of a task per message (E1, E4).

``AsyncSend`` goes from attempt to attempt by callbacks. With a known route and an open connection it starts within
``begin`` and ends within the callback of the answer; only when it must look for a route or connect does a task do so.
After a network failure it tries again, up to ``async_retries`` times, on the same broker and queue, which other
messages may already be on their way to; an answer, even a refusal, ends it. One timer bounds all of it.
"""

from __future__ import annotations

import asyncio

from ternmq.client.hooks import SendContext, SendMode, run_after
from ternmq.client.outgoing import Outgoing
from ternmq.client.routes import TopicRoute
from ternmq.client.sender import Pick, Sender
from ternmq.errors import CallTimeout, NetworkError, TernError
from ternmq.message import MessageQueue, SendReceipt
from ternmq.net.peer import Peer, TaskOwner
from ternmq.wire.header import Response


class AsyncSend:
    """One message on its way; ``receipt`` is the future that its sender holds."""

    __slots__ = (
        "_attempts_left",
        "_call",
        "_context",
        "_pick",
        "_queue",
        "_route",
        "_sender",
        "_started",
        "_tasks",
        "_timeout_ms",
        "_timer",
        "outgoing",
        "receipt",
    )

    def __init__(
        self, sender: Sender, tasks: TaskOwner, outgoing: Outgoing, *, pick: Pick | None = None, timeout_ms: int
    ) -> None:
        self._sender = sender
        self._tasks = tasks
        self.outgoing = outgoing
        self._pick = pick if pick is not None else sender.choose
        self._queue: MessageQueue | None = None
        self._timeout_ms = timeout_ms
        # A retry could put a message of a fixed queue behind later ones.
        self._attempts_left = 1 if pick is not None else 1 + sender.config.async_retries
        loop = asyncio.get_running_loop()
        self.receipt: asyncio.Future[SendReceipt] = loop.create_future()
        self._timer = loop.call_later(timeout_ms / 1000, self._expire)
        self._route: TopicRoute | None = None
        self._call: asyncio.Future[Response] | None = None
        self._context: SendContext | None = None
        self._started = 0.0

    def begin(self) -> None:
        """Start the next attempt."""
        instance = self._sender.instance
        route = self._route = instance.routes.known(self.outgoing.topic)
        if route is not None and route.to_write:
            try:
                address = self._place(route)
            except Exception as error:
                self._fail(error)
                return
            peer = instance.connections.get(address)
            if peer is not None:
                self._write(peer, address)
                return
        self._tasks.create_task(self._find_the_way())

    async def _find_the_way(self) -> None:
        sender, topic = self._sender, self.outgoing.topic
        try:
            route = self._route
            if route is None or not route.to_write:
                route = await sender.route(topic, timeout_ms=self._timeout_ms)
            address = self._place(route)
            peer = await sender.instance.connections.to(address)
        except Exception as error:
            # Ours, or that of a selector; both belong to who holds the future.
            self._fail(error)
        else:
            if not self.receipt.done():
                self._write(peer, address)

    def _place(self, route: TopicRoute) -> str:
        """The address to send to. The queue is chosen once and kept in later attempts."""
        if self._queue is None:
            self._queue = self._pick(route)
        return self._sender.address(route, self._queue)

    def _write(self, peer: Peer, address: str) -> None:
        sender, outgoing, queue = self._sender, self.outgoing, self._queue
        assert queue is not None
        code = outgoing.code
        try:
            self._context = sender.before(outgoing, queue, address, SendMode.ASYNC)
            self._started = sender.now()
            self._call = peer.start_call(
                code, sender.header(outgoing, queue), outgoing.body, form=sender.instance.form_of(code)
            )
        except Exception as error:
            # Ours, or one by which a hook forbids the send; both belong to who holds the future.
            self._fail(error)
        else:
            self._call.add_done_callback(self._answered)

    def _answered(self, call: asyncio.Future[Response]) -> None:
        if call.cancelled():
            return
        # Read in any case, or asyncio complains about an error that nobody saw.
        error = call.exception()
        if self.receipt.done():
            return
        queue = self._queue
        assert queue is not None
        receipt: SendReceipt | None = None
        if error is None:
            try:
                receipt = self.outgoing.receipt(call.result(), broker_name=queue.broker_name)
            except TernError as refusal:
                error = refusal
        self._sender.report(queue, self._started, error=error)
        context = self._context
        if context is not None:
            context.receipt, context.error = receipt, error
            run_after(self._sender.hooks, context)
        if receipt is not None:
            self._timer.cancel()
            self.receipt.set_result(receipt)
        else:
            assert error is not None
            self._fail(error)

    def _fail(self, error: BaseException) -> None:
        self._attempts_left -= 1
        if self.receipt.done():
            return
        if self._attempts_left > 0 and isinstance(error, NetworkError) and self._queue is not None:
            self.begin()
            return
        self._timer.cancel()
        self.receipt.set_exception(error)

    def abandon(self) -> None:
        """Wait no longer; nobody asks for the receipt any more."""
        self._timer.cancel()
        self.receipt.cancel()

    def _expire(self) -> None:
        if self.receipt.done():
            return
        if self._call is not None:
            self._call.cancel()
        where = f" ({self._queue})" if self._queue is not None else ""
        self.receipt.set_exception(
            CallTimeout(
                f"no answer to a send to topic {self.outgoing.topic!r}{where} within {self._timeout_ms} ms; "
                "the message may be stored"
            )
        )
