"""The sending half of a producer: what all messages on their way have in common (E1, E3).

Each is an ``OngoingSend`` (``ongoing``), which goes from attempt to attempt by itself. Here are the ways to begin one,
and what its attempts ask for: a route, a queue, an address, hooks, and the pace of busy brokers (``paces``).
"""

from __future__ import annotations

import asyncio
from collections.abc import Collection, Sequence
from typing import Final

from ternmq.client.config import ProducerConfig
from ternmq.client.connect.instance import ClientInstance
from ternmq.client.connect.routes import TopicRoute
from ternmq.client.send.hooks import SendContext, SendHook, SendMode, run_before
from ternmq.client.send.ongoing import OngoingSend, Pick, Promise, Retry
from ternmq.client.send.outgoing import Outgoing, SendHeads
from ternmq.client.send.paces import Paces
from ternmq.client.send.queue_choice import LatencyFaults, RoundRobin
from ternmq.errors import CallTimeout, NetworkError, RouteMissing, ServiceNotAvailable, TooManyCalls
from ternmq.message import MessageQueue, SendReceipt
from ternmq.wire.record import Sysflag

_SYNC, _ASYNC, _ONEWAY = SendMode.SYNC, SendMode.ASYNC, SendMode.ONEWAY
_OTHER_BROKER, _NO_RETRY = Retry.OTHER_BROKER, Retry.NONE
#: How long a send that knows a route waits for a newer one.
_REFRESH_S: Final = 0.3


class Sender:
    """The sending half of a producer. All methods belong to the loop's thread, but ``choose``, ``address`` and those of
    ``heads``, which threads call, too (``thread_send``)."""

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
        self.flying: dict[OngoingSend, asyncio.Future[SendReceipt]] = {}
        self._flying_bytes = 0
        self.paces = Paces(instance.env, instance.connections.calls_open)
        self._group = group
        self._clock = instance.env.clock
        self._turns = RoundRobin(instance.env.random)
        #: How slow brokers were, if that decides where messages go (E3).
        self.faults = LatencyFaults() if config.send_latency_fault_enable else None
        #: Whether no other thread may begin a send (``thread_send``): hooks and faults belong to the loop's.
        self.is_loops_only: Final = bool(hooks) or self.faults is not None

    async def deliver(
        self, outgoing: Outgoing, *, pick: Pick | None = None, timeout_ms: int, mode: SendMode = SendMode.SYNC
    ) -> SendReceipt:
        """Send and wait for the answer. ``pick`` fixes the queue, and then nothing is retried.

        Raises ``BrokerRefused`` for an answer that no retry would change, ``SendFailed`` when several attempts failed,
        else the error of the only attempt; ``RouteMissing`` and ``NameServersUnreachable`` when there is nowhere to
        send to.
        """
        receipt: asyncio.Future[SendReceipt] = asyncio.get_running_loop().create_future()
        sending = self.begin(outgoing, receipt, pick, timeout_ms, mode)
        try:
            return await receipt
        except asyncio.CancelledError:
            sending.abandon()
            raise

    def begin(
        self, outgoing: Outgoing, receipt: Promise, pick: Pick | None, timeout_ms: int, mode: SendMode = SendMode.SYNC
    ) -> OngoingSend:
        """Send; the caller waits for the ``receipt``, and calls ``abandon`` if it is cancelled meanwhile."""
        retry = _OTHER_BROKER if pick is None and mode is _SYNC else _NO_RETRY
        sending = OngoingSend(self, outgoing, mode, retry, receipt, pick=pick, timeout_ms=timeout_ms)
        sending.begin()
        return sending

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
        """Send without waiting, after ``check_room``; the future gets the receipt or the error.

        With ``pick``, nothing is retried, whatever ``retry`` says.
        """
        body_bytes = len(outgoing.body)
        receipt: asyncio.Future[SendReceipt] = asyncio.get_running_loop().create_future()
        sending = OngoingSend(
            self, outgoing, _ASYNC, retry if pick is None else _NO_RETRY, receipt, pick=pick, timeout_ms=timeout_ms
        )
        self.flying[sending] = receipt
        self._flying_bytes += body_bytes
        sending.begin()
        return receipt

    def check_room(self, body_bytes: int, *, held_bytes: int = 0) -> None:
        """Raise ``TooManyCalls`` if so much more may not be sent without waiting. ``held_bytes`` wait to be sent."""
        flying_bytes = self._flying_bytes + held_bytes
        if flying_bytes + body_bytes > self.config.async_bytes_max:
            raise TooManyCalls(
                f"{len(self.flying)} sends of {flying_bytes} bytes wait for an answer; await some of their "
                "futures first, or raise async_bytes_max"
            )

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

    async def ask_route(self, topic: str, *, pause_s: float = 0.0) -> TopicRoute:
        """As ``route``, without a time limit. If no name server answers soon, what is known has to do. ``pause_s``: ask
        so much later, or with another send that asks later."""
        known = self.instance.routes.known(topic)
        is_usable = known is not None and bool(known.to_write)
        try:
            async with asyncio.timeout(pause_s + _REFRESH_S if is_usable else None):
                routes, queues_max = self.instance.routes, self.config.default_topic_queue_nums
                if pause_s:
                    route = await routes.refresh_in(pause_s, topic, queues_max=queues_max)
                else:
                    route = await routes.refresh(topic, queues_max=queues_max)
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
        if self.faults is not None:
            avoid = (*avoid, *self.faults.avoided(route, now_ms=self._now_ms()))
        instance = self.instance
        if silent := instance.connections.silent:
            masters = ((name, route.address(name)) for name in route.write_queues)
            avoid = (*avoid, *(name for name, at in masters if at is not None and instance.fast_address(at) in silent))
        return self._turns.choose(route, avoid=avoid)

    def address(self, route: TopicRoute, queue: MessageQueue) -> str:
        """Where the master of the queue's broker listens; raises ``NetworkError`` if the route does not know it."""
        instance = self.instance
        address = route.address(queue.broker_name)
        if address is None:
            address = instance.broker_address(queue.broker_name)
        return instance.fast_address(address) if instance.config.vip_channel else address

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
        if self.faults is not None:
            took_ms = int((self.now() - started) * 1000)
            self.faults.report(queue.broker_name, took_ms=took_ms, failed=error is not None, now_ms=self._now_ms())
        if error is not None and isinstance(error, (NetworkError, ServiceNotAvailable)):
            self.instance.refresh_routes_soon()

    def has_idle_broker(self, topic: str) -> bool:
        """Whether a broker of this topic is not busy."""
        route = self.instance.routes.known(topic)
        return route is not None and any(
            (self.address(route, queue), topic) not in self.paces.by_place for queue in route.to_write
        )

    def close(self) -> None:
        """End what waits for busy brokers."""
        self.paces.close()

    def now(self) -> float:
        return self._clock.monotonic()

    def _now_ms(self) -> int:
        return int(self._clock.monotonic() * 1000)
