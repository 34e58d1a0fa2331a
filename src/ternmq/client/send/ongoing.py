"""A message on its way: route, queue, connection, answer, and what to do when one of them fails (E1, E3, E4).

``send``, ``send_nowait``, ``send_oneway`` and all that builds on them begin an ``OngoingSend``. It goes from attempt to
attempt by calls and callbacks. With a known route and an open connection an attempt starts
within ``begin`` and ends within the call by which the connection brings the answer. A task is made only to ask for a
route, to connect, or to wait for a broker that does not read. What follows a failed attempt is the ``Retry`` rule of
the send:

- ``OTHER_BROKER``, awaited sends: up to ``retries`` attempts on other brokers, after network failures and the answers
  in ``retry_codes``. If all fail, the error has the reasons of all.
- ``SAME_BROKER``, sends without waiting: up to ``async_retries`` attempts on the same broker and queue, which other
  messages may already be on their way to, after network failures only. An answer, even a refusal, ends the send.
- ``NONE``, one-way sends and messages with a fixed queue: an order is worth more than a retry that could break it.

A broker that is busy is another matter: it has stored nothing, and the send goes again when ``pace`` allows, or to a
broker that is not busy. This does not count as an attempt, and keeps the queue of a message with a fixed one.

So is a broker that has no master for a moment, as another one is elected or promoted. A send asks for the route again
until it has one, except one without waiting to a fixed queue: those that follow could overtake it. Before an attempt
that has no other broker left it waits until the name servers tell another master, for a moment only: the old one may
be it still. So some refusals of such a broker do not count as attempts.

One time limit covers all attempts, and waiting for a route, a connection and a busy broker.
"""

from __future__ import annotations

import asyncio
import contextvars
import enum
from collections.abc import Callable
from typing import TYPE_CHECKING, Final, Protocol

from ternmq.client.connect.routes import TopicRoute
from ternmq.client.send.hooks import SendContext, SendMode, run_after
from ternmq.client.send.outgoing import Outgoing
from ternmq.client.send.pace import SendPace
from ternmq.errors import (
    BrokerRefused,
    CallTimeout,
    MachineSilent,
    NetworkError,
    NotRunning,
    RouteMissing,
    SendFailed,
    ServiceNotAvailable,
    SystemBusy,
    TernError,
    TooManyCalls,
)
from ternmq.message import MessageQueue, SendReceipt, SendStatus
from ternmq.net.callers import SendCaller, SentAnswer
from ternmq.net.peer import Peer
from ternmq.wire.codes import RequestCode, ResponseCode
from ternmq.wire.header import Response

if TYPE_CHECKING:
    from ternmq.client.send.sender import Sender

#: Chooses the queue of a message whose queue is fixed.
Pick = Callable[[TopicRoute], MessageQueue]


class Retry(enum.Enum):
    """What follows a failed attempt."""

    OTHER_BROKER = enum.auto()
    SAME_BROKER = enum.auto()
    NONE = enum.auto()


#: Bound once: to look up a member of an enum takes 0.1 µs, and each send would do it ten times.
_SYNC, _ASYNC, _ONEWAY = SendMode.SYNC, SendMode.ASYNC, SendMode.ONEWAY
_OTHER_BROKER, _SAME_BROKER, _NO_RETRY = Retry.OTHER_BROKER, Retry.SAME_BROKER, Retry.NONE
_OK: Final = SendStatus.OK
#: Pauses before questions for a route in which a new master is expected: each is longer than the one before by a
#: factor, up to the shorter limit in the first second, in which most masters are there, and then up to the longer one.
_MASTER_PAUSE_S: Final = 0.03
_MASTER_PAUSE_FACTOR: Final = 1.3
_MASTER_SOON_S: Final = 1.0
_MASTER_PAUSE_SOON_S: Final = 0.1
_MASTER_PAUSE_MAX_S: Final = 0.25
#: How long another master than the one that failed is waited for: before the first further attempt, and at most.
_OTHER_MASTER_S: Final = 0.03
_OTHER_MASTER_MAX_S: Final = 0.25
#: Refusals of brokers that are not available, or not the master any more, which do not count as attempts: with the
#: pauses that is a second, longer than a handover takes. A full disk has the same code, and is not gone by waiting.
_REFUSALS_MAX: Final = 4
#: Refusals of a broker that has too much to do.
_BUSY_CODES: Final = frozenset({int(ResponseCode.SYSTEM_BUSY), int(ResponseCode.FLOW_CONTROL)})


class Promise(Protocol):
    """What gets the end of a send: an ``asyncio.Future``, or what stands for it in another thread."""

    def done(self) -> bool: ...

    def set_result(self, receipt: SendReceipt, /) -> None: ...

    def set_exception(self, error: BaseException, /) -> None: ...

    def cancel(self) -> bool: ...


class OngoingSend(SendCaller):
    """One message on its way; ``receipt`` is what its caller awaits or holds."""

    __slots__ = (
        "_address",
        "_attempts_left",
        "_avoid",
        "_awaited",
        "_busy",
        "_context",
        "_counted",
        "_failed_at",
        "_failures",
        "_limits",
        "_mode",
        "_opaque",
        "_pace",
        "_peer",
        "_pick",
        "_queue",
        "_retry",
        "_sender",
        "_started",
        "_stored",
        "_task",
        "_timeout_ms",
        "_unled",
        "_variables",
        "outgoing",
        "receipt",
    )

    def __init__(
        self,
        sender: Sender,
        outgoing: Outgoing,
        mode: SendMode,
        retry: Retry,
        receipt: Promise,
        *,
        pick: Pick | None,
        timeout_ms: int,
        left_ms: int | None = None,
    ) -> None:
        """``left_ms`` is what is left of ``timeout_ms``, if it has begun before."""
        self.outgoing = outgoing
        self.receipt = receipt
        self._sender = sender
        self._mode = mode
        self._retry = retry
        self._pick = pick
        self._timeout_ms = timeout_ms
        config = sender.config
        if retry is _OTHER_BROKER:
            self._attempts_left = 1 + config.retries
        else:
            self._attempts_left = 1 + config.async_retries if retry is _SAME_BROKER else 1
        #: Where this attempt goes; the queue is kept in an attempt on the same broker.
        self._queue: MessageQueue | None = None
        self._address = ""
        self._started = 0.0
        #: While an answer is awaited.
        self._peer: Peer | None = None
        self._opaque = 0
        #: While a route or a connection is awaited, and how an error says that it did not come.
        self._task: asyncio.Task[None] | None = None
        self._awaited = ""
        #: While a master is awaited, what is missing.
        self._unled: RouteMissing | None = None
        #: While a busy broker must be left alone, and what it said last.
        self._pace: SendPace | None = None
        self._busy: BrokerRefused | None = None
        #: The pace that counts it while an answer is awaited.
        self._counted: SendPace | None = None
        #: Of attempts that failed: why, the brokers that they went to, and the addresses.
        self._failures: tuple[BaseException, ...] = ()
        self._avoid: tuple[str, ...] = ()
        self._failed_at: tuple[str, ...] = ()
        #: The answer of a broker that has the message, if less safely than was asked for.
        self._stored: SendReceipt | None = None
        #: For hooks. They see the context variables of the caller in all attempts.
        self._context: SendContext | None = None
        self._variables = contextvars.copy_context() if sender.hooks else None
        self._limits = sender.instance.time_limits.add(self, timeout_ms if left_ms is None else left_ms)

    def begin(self) -> None:
        """Start the next attempt."""
        instance = self._sender.instance
        route = instance.routes.known(self.outgoing.topic)
        if route is not None and route.to_write and not (self._failures and self._is_exhausted(route)):
            if not self._place(route):
                return
            peer = instance.connections.get(self._address)
            if peer is not None and (self._mode is _ASYNC or not peer.is_full):
                self._write(peer)
                return
        self._start_finding()

    def go_on_from(self, queue: MessageQueue | None, address: str, end: Response | NetworkError | None) -> None:
        """Go on where a thread has got to by itself (``thread_send``), instead of ``begin``: it may have chosen the
        queue, and has made the first attempt if that has an ``end``."""
        self._queue = queue
        if end is None:
            self.begin()
            return
        self._address = address
        if isinstance(end, Response):
            self.answered(end)
        elif isinstance(end, CallTimeout):
            self.expire()
        else:
            if isinstance(end, MachineSilent):
                self._sender.instance.connections.suspect(address)
            self.failed(end)

    def _is_exhausted(self, route: TopicRoute) -> bool:
        """Whether this message has failed at each broker of a route: it may be old. A broker that came back is not in
        the route before the next refresh, and the last one that was left may go down next, as in a rolling restart."""
        return all(queue.broker_name in self._avoid for queue in route.to_write)

    def _start_finding(self) -> None:
        try:
            self._task = self._sender.instance.start(self._find_the_way)
        except NotRunning as error:
            self._ended(None, error)

    async def _find_the_way(self) -> None:
        """What must be waited for before an attempt: route, connection, and a broker that reads."""
        sender, topic = self._sender, self.outgoing.topic
        try:
            if not self._address:
                self._awaited = f"no name server told the route of topic {topic!r}"
                if not self._place(await self._ask_route()):
                    return
            self._awaited = f"{self._address} gave no connection"
            peer = await sender.instance.connections.to(self._address)
            if self._mode is not _ASYNC:
                # Sends without waiting have a limit of their own.
                self._awaited = f"{self._address} did not read earlier data"
                await peer.writable(timeout_ms=self._timeout_ms)
        except Exception as error:
            if self._address:
                self._ended(None, error)
            else:
                self._give_up(error)
        except asyncio.CancelledError:
            # By ``expire`` or ``abandon``, or with the client: then the caller still waits.
            if not self.receipt.done():
                self._ended(None, NotRunning("this client was closed while a message waited for a connection"))
            raise
        else:
            self._task = None
            self._awaited = ""
            if self.receipt.done():
                # Cancelled by its holder, before anything was sent.
                self._finish(None, None)
            else:
                self._write(peer)

    async def _ask_route(self) -> TopicRoute:
        """A route with a queue to write to; waits while a broker has no master, and for a while if all masters are
        those that failed. Raises ``RouteMissing``."""
        sender, topic = self._sender, self.outgoing.topic
        began, failures = sender.now(), len(self._failures)
        other_s = min(_OTHER_MASTER_S * 4 ** (failures - 1), _OTHER_MASTER_MAX_S) if failures else 0.0
        pause_s = _MASTER_PAUSE_S if failures else 0.0
        while True:
            try:
                route = await sender.ask_route(topic, pause_s=pause_s)
            except RouteMissing as error:
                known = sender.instance.routes.known(topic)
                # The next message for the same queue does not wait for this one: it could find the master first.
                may_be_overtaken = self._pick is not None and self._mode is _ASYNC
                if may_be_overtaken or known is None or not known.lacks_master:
                    raise
                self._unled = error
            else:
                self._unled = None
                if sender.now() - began >= other_s or not self._has_failed_at_all(route):
                    return route
            longest_s = _MASTER_PAUSE_SOON_S if sender.now() - began < _MASTER_SOON_S else _MASTER_PAUSE_MAX_S
            pause_s = min(max(_MASTER_PAUSE_FACTOR * pause_s, _MASTER_PAUSE_S), longest_s)

    def _has_failed_at_all(self, route: TopicRoute) -> bool:
        """Whether this message has failed at the masters of all brokers of a route, where they are now."""
        masters = {queue.broker_name: route.address(queue.broker_name) for queue in route.to_write}
        return all(
            address is not None and self._sender.instance.fast_address(address) in self._failed_at
            for address in masters.values()
        )

    def _place(self, route: TopicRoute) -> bool:
        """Choose queue and address and ask the hooks; whether the attempt can go on."""
        sender = self._sender
        try:
            queue = self._queue
            if queue is None:
                pick = self._pick
                queue = sender.choose(route, avoid=self._avoid) if pick is None else pick(route)
                self._queue = queue
            address = sender.address(route, queue)
        except Exception as error:
            # A selector's, or no route names the broker any more.
            self._ended(None, error)
            return False
        if sender.hooks:
            try:
                self._context = sender.before(self.outgoing, queue, address, self._mode)
            except Exception as error:
                # A hook forbids it, so nothing is retried.
                self._finish(None, error)
                return False
        self._address = address
        if sender.faults is not None:
            self._started = sender.now()
        return True

    def go_on(self) -> None:
        """The broker is not too busy any more (``pace.Paced``)."""
        self._pace = None
        self._awaited = ""
        if self.receipt.done():
            # Cancelled by its holder, before anything was sent.
            self._finish(None, None)
            return
        peer = self._sender.instance.connections.get(self._address)
        if peer is not None and (self._mode is _ASYNC or not peer.is_full):
            self._write(peer, is_admitted=True)
        else:
            self._start_finding()

    def _write(self, peer: Peer, *, is_admitted: bool = False) -> None:
        sender, outgoing, queue = self._sender, self.outgoing, self._queue
        assert queue is not None
        is_oneway = self._mode is _ONEWAY
        if (paces := sender.paces.by_place) and (pace := paces.get((self._address, outgoing.topic))) is not None:
            if not is_admitted and not pace.admits(sender.now()):
                self._pace = pace
                self._awaited = f"{self._address} was too busy for the message"
                pace.wait(self)
                sender.paces.release(self._address, outgoing.topic)
                return
            if not is_oneway:
                pace.out += 1
                self._counted = pace
        try:
            opaque = peer.next_opaque()
            buffers = sender.heads.request(outgoing, queue.queue_id, opaque, is_oneway, peer.frame_bytes_max)
            peer.begin_call(opaque, buffers, None if is_oneway else self)
        except Exception as error:
            self._ended(None, error)
            return
        if is_oneway:
            self._run_hooks_after(None, None)
            self._finish(None, None)
        else:
            self._peer, self._opaque = peer, opaque

    # --- The end of an attempt -------------------------------------------------------------------------------

    def stored(self, sent: SentAnswer) -> None:
        """The broker's answer, read by a kernel (``callers.SendCaller``)."""
        assert self._queue is not None
        receipt = self.outgoing.stored(sent, self._queue)
        if self._variables is None:
            self._ended(receipt, None)
        else:
            self._variables.run(self._ended, receipt, None)

    def answered(self, response: Response) -> None:
        """The broker's answer (``callers.Caller``)."""
        assert self._queue is not None
        try:
            receipt = self.outgoing.receipt(response, self._queue)
        except TernError as error:
            self.failed(error)
            return
        if self._variables is None:
            self._ended(receipt, None)
        else:
            self._variables.run(self._ended, receipt, None)

    def failed(self, error: TernError) -> None:
        """No answer will come, or it was a refusal (``callers.Caller``)."""
        if self._variables is None:
            self._ended(None, error)
        else:
            self._variables.run(self._ended, None, error)

    def expire(self) -> None:
        """The time for all attempts is over (``time_limits.Expiring``)."""
        self._attempts_left = 0
        is_paced = self._pace is not None
        self._let_go()
        address, within = self._address, f"within {self._timeout_ms} ms"
        if is_paced:
            self.failed(self._busy or SystemBusy(f"{self._awaited} {within}; send more slowly, or add a broker"))
        elif self._unled is not None:
            self._give_up(self._unled)
        elif self._awaited:
            self.failed(CallTimeout(f"{self._awaited} {within}", address=address))
        else:
            what = f"{RequestCode(self.outgoing.code).name} to {self._queue}"
            self.failed(
                CallTimeout(f"{address} did not answer {what} {within}; the message may be stored", address=address)
            )

    def _ended(self, receipt: SendReceipt | None, error: BaseException | None) -> None:
        """An attempt has ended with a receipt or an error; maybe another one follows."""
        queue, sender = self._queue, self._sender
        self._peer = self._task = None
        self._awaited = ""
        if queue is not None and (error is not None or sender.faults is not None):
            sender.report(queue, self._started, error)
        if self._context is not None:
            self._run_hooks_after(receipt, error)
        if self._counted is not None:
            self._uncount(stored=error is None)
        if error is not None:
            if isinstance(error, BrokerRefused) and error.code in _BUSY_CODES and self._attempts_left > 0:
                self._wait_while_busy(error)
                return
            if not self._may_retry_after(error):
                self._finish(None, error)
                return
            self._failures = (*self._failures, error) if self._retry is Retry.OTHER_BROKER else (error,)
            self._failed_at = (*self._failed_at, self._address)
        elif receipt is None or receipt.status is _OK or not self._wants_safer():
            self._finish(receipt, None)
            return
        else:
            self._stored = receipt
        may_hand_over = isinstance(error, ServiceNotAvailable) and len(self._failures) <= _REFUSALS_MAX
        if not may_hand_over or not sender.config.retries:
            self._attempts_left -= 1
        if self._attempts_left > 0 and not self.receipt.done():
            self._address = ""
            if self._retry is Retry.OTHER_BROKER:
                assert queue is not None
                self._avoid = (*self._avoid, queue.broker_name)
                self._queue = None
            self.begin()
        else:
            self._give_up(None)

    def _give_up(self, error: BaseException | None) -> None:
        """No attempt is left, or an ``error`` leaves no way to another one. A failed attempt may have stored the
        message: so the caller hears of all."""
        if error is not None:
            self._failures = (*self._failures, error)
        if self._stored is not None:
            # Less safely than was wished: better than an error for a message that consumers will see.
            self._finish(self._stored, None)
        else:
            self._finish(None, self._all_failed())

    def _wait_while_busy(self, refusal: BrokerRefused) -> None:
        """Nothing was stored, and nothing is as it should be: go again when the broker, or another one, has room."""
        sender = self._sender
        self._busy = refusal
        sender.paces.slow_down(self._address, self.outgoing.topic)
        if self.receipt.done():
            # Cancelled by its holder.
            self._finish(None, None)
            return
        if self._retry is _OTHER_BROKER and self._queue is not None and sender.has_idle_broker(self.outgoing.topic):
            self._avoid = (*self._avoid, self._queue.broker_name)
            self._queue = None
        self._address = ""
        self.begin()

    def _uncount(self, *, stored: bool) -> None:
        """It is not on its way any more, at a broker that was busy."""
        pace, self._counted = self._counted, None
        assert pace is not None
        pace.out -= 1
        if stored:
            pace.done()
        self._sender.paces.release(self._address, self.outgoing.topic)

    def close(self) -> None:
        """The client is closed while this waits for a busy broker."""
        self._pace = None
        self._awaited = ""
        self._ended(None, NotRunning("this client was closed while a message waited for a busy broker"))

    def _run_hooks_after(self, receipt: SendReceipt | None, error: BaseException | None) -> None:
        context = self._context
        if context is not None:
            self._context = None
            context.receipt, context.error = receipt, error
            run_after(self._sender.hooks, context)

    def _may_retry_after(self, error: BaseException) -> bool:
        """Whether another attempt could succeed where this one failed, if there is one left."""
        match self._retry:
            case Retry.OTHER_BROKER:
                if isinstance(error, BrokerRefused):
                    return error.code in self._sender.config.retry_codes
                return isinstance(error, NetworkError | TooManyCalls)
            case Retry.SAME_BROKER:
                return isinstance(error, NetworkError)
            case Retry.NONE:
                return False

    def _wants_safer(self) -> bool:
        return self._retry is Retry.OTHER_BROKER and self._sender.config.retry_another_broker_when_not_store_ok

    def _all_failed(self) -> BaseException:
        failures, topic = self._failures, self.outgoing.topic
        if len(failures) == 1:
            return failures[0]
        told = "; ".join(dict.fromkeys(map(str, failures)))
        error = SendFailed(
            f"{len(failures)} attempts to send to topic {topic!r} failed: {told}; "
            f"see `tern topic route {topic}` for its brokers",
            attempts=failures,
        )
        error.__cause__ = failures[-1]
        return error

    def abandon(self) -> None:
        """Wait no longer: the caller does not want the receipt any more."""
        self._let_go()
        self.receipt.cancel()
        self._finish(None, None)

    def _let_go(self) -> None:
        if self._task is not None:
            self._task.cancel()
            self._task = None
        if self._pace is not None:
            self._pace.forget(self)
            self._pace = None
        if self._peer is not None:
            self._peer.forget_call(self._opaque)
            self._peer = None
        if self._counted is not None:
            self._uncount(stored=False)

    def _finish(self, receipt: SendReceipt | None, error: BaseException | None) -> None:
        self._limits.pop(self, None)
        if self._mode is _ASYNC:
            self._sender.landed(self)
        future = self.receipt
        if future.done():
            # Cancelled by its holder.
            return
        if error is not None:
            future.set_exception(error)
        else:
            future.set_result(receipt)  # type: ignore[arg-type]  # only one-way sends have none, and do not ask
