"""How a message gets to a broker: route, queue, connection, answer, and what to do when one of them fails (E3, E4).

``Sender.deliver`` is the awaited send. It runs in its caller's task; on the hot path (route known, connection open) it
awaits one future and nothing else. An attempt that fails is followed by one on another broker, up to ``retries`` times
and within one time-out for all; which answers are worth another attempt says ``retry_codes``. A message with a fixed
queue has one attempt only: an order is worth more than a retry that could break it.

``AsyncSend`` (``async_send.py``) uses the same parts without a task.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Collection, Sequence

from ternmq.client.config import ProducerConfig
from ternmq.client.hooks import SendContext, SendHook, SendMode, run_after, run_before
from ternmq.client.instance import ClientInstance
from ternmq.client.outgoing import Outgoing
from ternmq.client.queue_choice import LatencyFaults, RoundRobin
from ternmq.client.routes import TopicRoute
from ternmq.errors import BrokerRefused, CallTimeout, NetworkError, RouteMissing, SendFailed, TernError, TooManyCalls
from ternmq.message import MessageQueue, SendReceipt, SendStatus
from ternmq.wire.requests import SendMessageV2

#: Chooses the queue of a message whose queue is fixed.
Pick = Callable[[TopicRoute], MessageQueue]


class Sender:
    """The sending half of a producer. All methods belong to the loop's thread."""

    def __init__(self, instance: ClientInstance, group: str, config: ProducerConfig, hooks: Sequence[SendHook]) -> None:
        self.instance = instance
        self.config = config
        self.hooks = hooks
        self._group = group
        self._clock = instance.env.clock
        self._unit_mode = bool(instance.config.unit_name)
        self._turns = RoundRobin(instance.env.random)
        self._faults = LatencyFaults() if config.send_latency_fault_enable else None

    async def deliver(self, outgoing: Outgoing, *, pick: Pick | None = None, timeout_ms: int) -> SendReceipt:
        """Send and wait for the answer. ``pick`` fixes the queue.

        Raises ``BrokerRefused`` for an answer that no retry would change, ``SendFailed`` when several attempts failed,
        else the error of the only attempt; ``RouteMissing`` and ``NameServersUnreachable`` when there is nowhere to
        send to.
        """
        clock = self._clock
        deadline = clock.monotonic() + timeout_ms / 1000
        route = self.instance.routes.known(outgoing.topic)
        if route is None or not route.to_write:
            route = await self.route(outgoing.topic, timeout_ms=timeout_ms)
        failures: list[TernError] = []
        avoid: tuple[str, ...] = ()
        attempts = 1 if pick is not None else 1 + self.config.retries
        time_left_ms = timeout_ms
        receipt: SendReceipt | None = None
        while True:
            chosen = self.choose(route, avoid=avoid) if pick is None else pick(route)
            try:
                receipt = await self._attempt(outgoing, route, chosen, timeout_ms=time_left_ms)
            except BrokerRefused as error:
                if error.code not in self.config.retry_codes:
                    raise
                failures.append(error)
            except (NetworkError, TooManyCalls) as error:
                failures.append(error)
            else:
                if receipt.status is SendStatus.OK or not self.config.retry_another_broker_when_not_store_ok:
                    return receipt
            time_left_ms = int((deadline - clock.monotonic()) * 1000)
            attempts -= 1
            if attempts == 0 or time_left_ms <= 0:
                break
            avoid = (*avoid, chosen.broker_name)
        # Stored, if not as safely as was wished: better than an error for a message that consumers will see.
        if receipt is not None:
            return receipt
        raise self._failed(outgoing, failures)

    async def deliver_oneway(self, outgoing: Outgoing, *, pick: Pick | None = None, timeout_ms: int) -> None:
        """Send without an answer; waits only for route, connection and a peer that reads."""
        route = self.instance.routes.known(outgoing.topic)
        if route is None or not route.to_write:
            route = await self.route(outgoing.topic, timeout_ms=timeout_ms)
        chosen = self.choose(route) if pick is None else pick(route)
        address = self.address(route, chosen)
        context = self.before(outgoing, chosen, address, SendMode.ONEWAY)
        peer = await self.instance.connections.to(address)
        await peer.writable()
        code = outgoing.code
        peer.call_oneway(code, self.header(outgoing, chosen), outgoing.body, form=self.instance.form_of(code))
        if context is not None:
            run_after(self.hooks, context)

    async def _attempt(
        self, outgoing: Outgoing, route: TopicRoute, queue: MessageQueue, *, timeout_ms: int
    ) -> SendReceipt:
        address = self.address(route, queue)
        context = self.before(outgoing, queue, address, SendMode.SYNC)
        started = self.now()
        try:
            response = await self.instance.call(
                address, outgoing.code, self.header(outgoing, queue), outgoing.body, timeout_ms=timeout_ms
            )
            receipt = outgoing.receipt(response, broker_name=queue.broker_name)
        except TernError as error:
            self.report(queue, started, error=error)
            if context is not None:
                context.error = error
                run_after(self.hooks, context)
            raise
        self.report(queue, started)
        if context is not None:
            context.receipt = receipt
            run_after(self.hooks, context)
        return receipt

    # --- Parts of an attempt ---------------------------------------------------------------------------------

    async def route(self, topic: str, *, timeout_ms: int) -> TopicRoute:
        """A route with a queue to write to; raises ``RouteMissing`` that says what is missing."""
        queues_max = self.config.default_topic_queue_nums
        try:
            async with asyncio.timeout(timeout_ms / 1000):
                # What is known has no queue to write to, or nothing is known.
                route = await self.instance.routes.refresh(topic, queues_max=queues_max)
        except TimeoutError as error:
            if isinstance(error, NetworkError):
                raise
            raise CallTimeout(f"no name server told the route of topic {topic!r} within {timeout_ms} ms") from None
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

    def header(self, outgoing: Outgoing, queue: MessageQueue) -> SendMessageV2:
        return outgoing.header(
            group=self._group,
            queue_id=queue.queue_id,
            born_time_ms=self._clock.now_ms(),
            default_topic_queue_nums=self.config.default_topic_queue_nums,
            unit_mode=self._unit_mode,
        )

    def before(self, outgoing: Outgoing, queue: MessageQueue, address: str, mode: SendMode) -> SendContext | None:
        """Run the hooks before an attempt; None when there are none. Raises what a hook forbids by."""
        if not self.hooks:
            return None
        context = SendContext(
            group=self._group,
            client_id=self.instance.client_id,
            messages=outgoing.messages,
            message_id=outgoing.message_id,
            queue=queue,
            broker_address=address,
            mode=mode,
            born_time_ms=self._clock.now_ms(),
        )
        run_before(self.hooks, context)
        return context

    def report(self, queue: MessageQueue, started: float, *, error: BaseException | None = None) -> None:
        """An attempt has ended: its broker may be slow (E3), or gone, and then the routes are old."""
        if self._faults is not None:
            took_ms = int((self.now() - started) * 1000)
            self._faults.report(queue.broker_name, took_ms=took_ms, failed=error is not None, now_ms=self._now_ms())
        if isinstance(error, NetworkError):
            self.instance.refresh_routes_soon()

    def now(self) -> float:
        return self._clock.monotonic()

    def _now_ms(self) -> int:
        return int(self._clock.monotonic() * 1000)

    def _failed(self, outgoing: Outgoing, failures: Sequence[TernError]) -> TernError:
        if len(failures) == 1:
            return failures[0]
        told = "; ".join(dict.fromkeys(map(str, failures)))
        error = SendFailed(
            f"{len(failures)} attempts to send to topic {outgoing.topic!r} failed: {told}; "
            f"see `tern topic route {outgoing.topic}` for its brokers",
            attempts=tuple(failures),
        )
        error.__cause__ = failures[-1]
        return error
