"""How a message gets to a broker: route, queue, connection, answer, and what to do when one of them fails (E1, E3, E4).

``OngoingSend`` is one message on its way, for ``send``, ``send_nowait``, ``send_oneway`` and all that builds on them.
It goes from attempt to attempt by calls and callbacks. With a known route and an open connection an attempt starts
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

One time limit covers all attempts, and waiting for a route, a connection and a busy broker.
"""

from __future__ import annotations

import asyncio
import contextvars
import enum
from collections.abc import Callable, Collection, Sequence
from typing import Final

from ternmq.client.config import ProducerConfig
from ternmq.client.connect.instance import ClientInstance
from ternmq.client.connect.routes import TopicRoute
from ternmq.client.send.hooks import SendContext, SendHook, SendMode, run_after, run_before
from ternmq.client.send.outgoing import Outgoing, SendHeads
from ternmq.client.send.pace import SendPace
from ternmq.client.send.queue_choice import LatencyFaults, RoundRobin
from ternmq.errors import (
    BrokerRefused,
    CallTimeout,
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
from ternmq.net.peer import Peer
from ternmq.wire.codes import RequestCode, ResponseCode
from ternmq.wire.header import Response
from ternmq.wire.record import Sysflag

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
#: How long a send that knows a route waits for a newer one.
_REFRESH_S: Final = 0.3
#: Refusals of a broker that has too much to do.
_BUSY_CODES: Final = frozenset({int(ResponseCode.SYSTEM_BUSY), int(ResponseCode.FLOW_CONTROL)})


class Sender:
    """The sending half of a producer. All methods belong to the loop's thread."""

    def __init__(self, instance: ClientInstance, group: str, config: ProducerConfig, hooks: Sequence[SendHook]) -> None:
        self.instance = instance
        self.config = config
        self.hooks = hooks
        self.heads = SendHeads(
            group,
            clock=instance.env.clock,
            form=instance.config.form,
            default_topic_queue_nums=config.default_topic_queue_nums,
            unit_mode=bool(instance.config.unit_name),
            credentials=instance.config.credentials(),
        )
        #: Sends without waiting that have no answer yet, and what their bodies take.
        self.flying: dict[OngoingSend, None] = {}
        self._flying_bytes = 0
        #: By address and topic, of brokers that were busy.
        self.paces: dict[tuple[str, str], SendPace] = {}
        self._group = group
        self._clock = instance.env.clock
        self._turns = RoundRobin(instance.env.random)
        self._faults = LatencyFaults() if config.send_latency_fault_enable else None

    async def deliver(
        self, outgoing: Outgoing, *, pick: Pick | None = None, timeout_ms: int, mode: SendMode = SendMode.SYNC
    ) -> SendReceipt:
        """Send and wait for the answer. ``pick`` fixes the queue, and then nothing is retried.

        Raises ``BrokerRefused`` for an answer that no retry would change, ``SendFailed`` when several attempts failed,
        else the error of the only attempt; ``RouteMissing`` and ``NameServersUnreachable`` when there is nowhere to
        send to.
        """
        retry = _OTHER_BROKER if pick is None and mode is _SYNC else _NO_RETRY
        sending = OngoingSend(self, outgoing, mode, retry, pick=pick, timeout_ms=timeout_ms)
        sending.begin()
        try:
            return await sending.receipt
        except asyncio.CancelledError:
            sending.abandon()
            raise

    async def deliver_oneway(self, outgoing: Outgoing, *, pick: Pick | None = None, timeout_ms: int) -> None:
        """Send without an answer; waits only for route, connection and a peer that reads."""
        await self.deliver(outgoing, pick=pick, timeout_ms=timeout_ms, mode=_ONEWAY)

    def start(
        self,
        outgoing: Outgoing,
        *,
        pick: Pick | None = None,
        timeout_ms: int,
        retry: Retry = Retry.SAME_BROKER,
    ) -> asyncio.Future[SendReceipt]:
        """Send without waiting; the future gets the receipt or the error. Raises ``TooManyCalls`` at the limit.

        With ``pick``, nothing is retried, whatever ``retry`` says.
        """
        body_bytes = len(outgoing.body)
        if self._flying_bytes + body_bytes > self.config.async_bytes_max:
            raise TooManyCalls(
                f"{len(self.flying)} sends of {self._flying_bytes} bytes wait for an answer; await some of their "
                "futures first, or raise async_bytes_max"
            )
        sending = OngoingSend(
            self, outgoing, _ASYNC, retry if pick is None else _NO_RETRY, pick=pick, timeout_ms=timeout_ms
        )
        self.flying[sending] = None
        self._flying_bytes += body_bytes
        sending.begin()
        return sending.receipt

    def landed(self, sending: OngoingSend) -> None:
        """A send without waiting has ended."""
        if sending in self.flying:
            del self.flying[sending]
            self._flying_bytes -= len(sending.outgoing.body)

    async def route(self, topic: str, *, timeout_ms: int) -> TopicRoute:
        """A route with a queue to write to; raises ``RouteMissing`` that says what is missing."""
        try:
            async with asyncio.timeout(timeout_ms / 1000):
                return await self.ask_route(topic)
        except TimeoutError as error:
            if isinstance(error, NetworkError):
                raise
            raise CallTimeout(f"no name server told the route of topic {topic!r} within {timeout_ms} ms") from None

    # --- Parts of an attempt ---------------------------------------------------------------------------------

    async def ask_route(self, topic: str) -> TopicRoute:
        """As ``route``, without a time limit. If no name server answers soon, what is known has to do."""
        known = self.instance.routes.known(topic)
        is_usable = known is not None and bool(known.to_write)
        try:
            async with asyncio.timeout(_REFRESH_S if is_usable else None):
                route = await self.instance.routes.refresh(topic, queues_max=self.config.default_topic_queue_nums)
        except (NetworkError, TimeoutError):
            if known is None or not is_usable:
                raise
            route = known
        if not route.to_write:
            raise RouteMissing(
                f"topic {topic!r} has no queue that can be written to: its brokers have no master, or no permission to "
                f"write; see `tern topic route {topic}`",
                topic=topic,
            )
        return route

    def choose(self, route: TopicRoute, *, avoid: Collection[str] = ()) -> MessageQueue:
        """The queue whose turn it is, on a broker that is neither to be avoided now nor was slow of late (E3)."""
        if self._faults is not None:
            avoid = (*avoid, *self._faults.avoided(route, now_ms=self._now_ms()))
        return self._turns.choose(route, avoid=avoid)

    def address(self, route: TopicRoute, queue: MessageQueue) -> str:
        """Where the master of the queue's broker listens; raises ``NetworkError`` if the route does not know it."""
        address = route.address(queue.broker_name)
        if address is None:
            address = self.instance.broker_address(queue.broker_name)
        return self.instance.fast_address(address)

    def before(self, outgoing: Outgoing, queue: MessageQueue, address: str, mode: SendMode) -> SendContext:
        """Run the hooks before an attempt. Raises what a hook forbids by."""
        context = SendContext(
            group=self._group,
            client_id=self.instance.client_id,
            messages=outgoing.messages,
            message_id=outgoing.message_id,
            queue=queue,
            broker_address=address,
            mode=mode,
            born_time_ms=self._clock.now_ms(),
            is_half=bool(outgoing.sysflag & Sysflag.PREPARED),
        )
        run_before(self.hooks, context)
        return context

    def report(self, queue: MessageQueue, started: float, error: BaseException | None) -> None:
        """An attempt has ended: its broker may be slow (E3), gone, or not the master any more; then routes are old."""
        if self._faults is not None:
            took_ms = int((self.now() - started) * 1000)
            self._faults.report(queue.broker_name, took_ms=took_ms, failed=error is not None, now_ms=self._now_ms())
        if error is not None and isinstance(error, (NetworkError, ServiceNotAvailable)):
            self.instance.refresh_routes_soon()

    # --- Busy brokers ----------------------------------------------------------------------------------------

    def slow_down(self, address: str, topic: str) -> None:
        """A broker has refused a send because it is busy."""
        pace = self.paces.get((address, topic))
        if pace is None:
            pace = self.paces[address, topic] = SendPace(self.instance.env.random)
            peer = self.instance.connections.get(address)
            # Those before this pace were not counted.
            out = 0 if peer is None else peer.calls_open
        else:
            out = pace.out
        pace.busy(out, self.now())

    def release(self, address: str, topic: str) -> None:
        """Let go on what waits for a broker that was busy, as far as it has room."""
        pace = self.paces.get((address, topic))
        if pace is None:
            return
        now = self.now()
        pace.release(now)
        if pace.is_over:
            del self.paces[address, topic]
        elif pace.waits and not pace.is_timed and now < pace.resume_at:
            # Also after a timer that came a little early, as those of uvloop do.
            pace.is_timed = True
            asyncio.get_running_loop().call_later(pace.resume_at - now, self._resume, address, topic)

    def _resume(self, address: str, topic: str) -> None:
        pace = self.paces.get((address, topic))
        if pace is not None:
            pace.is_timed = False
            self.release(address, topic)

    def has_idle_broker(self, topic: str) -> bool:
        """Whether a broker of this topic is not busy."""
        route = self.instance.routes.known(topic)
        return route is not None and any(
            (self.address(route, queue), topic) not in self.paces for queue in route.to_write
        )

    def close(self) -> None:
        """End what waits for busy brokers."""
        paces, self.paces = self.paces, {}
        for pace in paces.values():
            for sending in pace.give_up():
                assert isinstance(sending, OngoingSend)
                sending.close()

    def now(self) -> float:
        return self._clock.monotonic()

    def _now_ms(self) -> int:
        return int(self._clock.monotonic() * 1000)


class OngoingSend:
    """One message on its way; ``receipt`` is the future that its caller awaits or holds."""

    __slots__ = (
        "_address",
        "_attempts_left",
        "_avoid",
        "_awaited",
        "_busy",
        "_context",
        "_counted",
        "_failures",
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
        *,
        pick: Pick | None,
        timeout_ms: int,
    ) -> None:
        self.outgoing = outgoing
        self.receipt: asyncio.Future[SendReceipt] = asyncio.get_running_loop().create_future()
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
        #: While a busy broker must be left alone, and what it said last.
        self._pace: SendPace | None = None
        self._busy: BrokerRefused | None = None
        #: The pace that counts it while an answer is awaited.
        self._counted: SendPace | None = None
        #: Of attempts that failed: why, and the brokers that they went to.
        self._failures: tuple[BaseException, ...] = ()
        self._avoid: tuple[str, ...] = ()
        #: The answer of a broker that has the message, if less safely than was asked for.
        self._stored: SendReceipt | None = None
        #: For hooks. They see the context variables of the caller in all attempts.
        self._context: SendContext | None = None
        self._variables = contextvars.copy_context() if sender.hooks else None
        sender.instance.time_limits.add(self, timeout_ms)

    def begin(self) -> None:
        """Start the next attempt."""
        instance = self._sender.instance
        route = instance.routes.known(self.outgoing.topic)
        if route is not None and route.to_write and not self._is_exhausted(route):
            if not self._place(route):
                return
            peer = instance.connections.get(self._address)
            if peer is not None and (self._mode is _ASYNC or not peer.is_full):
                self._write(peer)
                return
        self._start_finding()

    def _is_exhausted(self, route: TopicRoute) -> bool:
        """Whether this message has failed at each broker of a route: it may be old. A broker that came back is not in
        the route before the next refresh, and the last one that was left may go down next, as in a rolling restart."""
        return bool(self._failures) and all(queue.broker_name in self._avoid for queue in route.to_write)

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
                if not self._place(await sender.ask_route(topic)):
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
                self._finish(None, error)
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
        if sender.paces and (pace := sender.paces.get((self._address, outgoing.topic))) is not None:
            if not is_admitted and not pace.admits(sender.now()):
                self._pace = pace
                self._awaited = f"{self._address} was too busy for the message"
                pace.wait(self)
                sender.release(self._address, outgoing.topic)
                return
            if not is_oneway:
                pace.out += 1
                self._counted = pace
        try:
            opaque = peer.next_opaque()
            head = sender.heads.encode(outgoing, queue.queue_id, opaque=opaque, oneway=is_oneway)
            peer.begin_call(opaque, head, outgoing.body, None if is_oneway else self, form=sender.heads.form)
        except Exception as error:
            self._ended(None, error)
            return
        if is_oneway:
            self._run_hooks_after(None, None)
            self._finish(None, None)
        else:
            self._peer, self._opaque = peer, opaque

    # --- The end of an attempt -------------------------------------------------------------------------------

    def answered(self, response: Response) -> None:
        """The broker's answer (``peer.Caller``)."""
        assert self._queue is not None
        try:
            receipt = self.outgoing.receipt(response, broker_name=self._queue.broker_name)
        except TernError as error:
            self.failed(error)
            return
        if self._variables is None:
            self._ended(receipt, None)
        else:
            self._variables.run(self._ended, receipt, None)

    def failed(self, error: TernError) -> None:
        """No answer will come, or it was a refusal (``peer.Caller``)."""
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
        if queue is not None:
            sender.report(queue, self._started, error)
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
        elif receipt is None or receipt.status is _OK or not self._wants_safer():
            self._finish(receipt, None)
            return
        else:
            self._stored = receipt
        self._attempts_left -= 1
        if self._attempts_left > 0 and not self.receipt.done():
            self._address = ""
            if self._retry is Retry.OTHER_BROKER:
                assert queue is not None
                self._avoid = (*self._avoid, queue.broker_name)
                self._queue = None
            self.begin()
        elif self._stored is not None:
            # Less safely than was wished: better than an error for a message that consumers will see.
            self._finish(self._stored, None)
        else:
            self._finish(None, self._all_failed())

    def _wait_while_busy(self, refusal: BrokerRefused) -> None:
        """Nothing was stored, and nothing is as it should be: go again when the broker, or another one, has room."""
        sender = self._sender
        self._busy = refusal
        sender.slow_down(self._address, self.outgoing.topic)
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
        self._sender.release(self._address, self.outgoing.topic)

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
        sender = self._sender
        sender.instance.time_limits.remove(self, self._timeout_ms)
        if self._mode is _ASYNC:
            sender.landed(self)
        if self.receipt.done():
            # Cancelled by its holder.
            return
        if error is not None:
            self.receipt.set_exception(error)
        else:
            self.receipt.set_result(receipt)  # type: ignore[arg-type]  # only one-way sends have none, and do not ask
