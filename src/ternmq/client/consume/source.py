"""Where messages come from: a ``Source`` fetches from one place, and makes lots of what it gets (F1, F8, F9, M2).

A source is opened, runs until it is cancelled or told to leave, and is closed. ``Sources`` decides when. Two kinds are
there: ``PullSource`` reads a queue that this consumer owns, ``PopSource`` asks a broker for messages that any member
may get. What they have in common stands here: the loop that fetches again after every error, the choice of the broker,
and the limits that hold a consumer back.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final, Protocol

from ternmq.client.connect.instance import ClientInstance
from ternmq.client.connect.namespace import unwrap
from ternmq.client.connect.routes import MASTER_ID, Copy
from ternmq.client.consume.claimed import Claimed
from ternmq.client.consume.config import PushConfig
from ternmq.client.consume.locks import HeldLocks
from ternmq.client.consume.settle import Settling
from ternmq.client.consume.subscription import Subscription
from ternmq.errors import (
    FilterMissing,
    FilterOutdated,
    NetworkError,
    ServiceNotAvailable,
    SubscriptionMissing,
    SubscriptionOutdated,
    TernError,
)
from ternmq.message import MessageQueue, Property
from ternmq.names import RETRY_PREFIX
from ternmq.wire.bodies.clients import PopQueueInfo, ProcessQueueInfo
from ternmq.wire.codes import ResponseCode
from ternmq.wire.header import Response

log = logging.getLogger(__name__)

#: RocketMQ's ``pullTimeDelayMillsWhenException``, and its delay for the answer FLOW_CONTROL.
ERROR_PAUSE_S: Final = 3.0
BUSY_PAUSE_S: Final = 0.02
#: The first pause after a broker has said that it is not the master: another one will register soon. It doubles.
NO_MASTER_PAUSE_S: Final = 0.2
#: A broker that finds nothing and answers sooner than this did not wait at all; it is asked again after a pause.
QUICK_S: Final = 0.05
QUICK_PAUSE_S: Final = 0.2
#: Between two log lines that one limit holds a consumer back; a slow listener reaches it thousands of times.
HELD_BACK_LOG_S: Final = 60.0

#: Takes messages of one lot, on the loop.
Deliver = Callable[[Sequence[Claimed]], None]


class Source(Protocol):
    """One place to fetch from. All methods belong to the loop's thread."""

    #: By its name on the wire: a queue, or with queue id -1 a broker.
    queue: MessageQueue

    async def open(self) -> None:
        """Find out where to begin. Raises ``TernError``, ``QueueLocked`` while another member has the queue."""
        ...

    async def run(self, deliver: Deliver) -> None:
        """Fetch for ever, or until told to ``leave``."""
        ...

    @property
    def progress(self) -> int | None:
        """The queue offset to store for the group; None if the broker keeps it, and must not be interrupted while it
        answers."""
        ...

    @property
    def is_ours(self) -> bool:
        """Whether what was fetched still counts: not after ``drop``."""
        ...

    @property
    def is_stuck(self) -> bool:
        """Whether its request should have ended long ago."""
        ...

    def in_hand(self) -> Iterable[Claimed]:
        """What was fetched and is not settled, as long as it is ours."""
        ...

    def move(self, queue_offset: int) -> None:
        """Continue there; what was fetched before has no effect any more."""
        ...

    def drop(self) -> None:
        """The queue belongs to another consumer now: what was fetched has no effect any more."""
        ...

    def leave(self) -> None:
        """Fetch no more, but take the answer that is under way."""
        ...

    async def give_back(self) -> None:
        """At the end: let other members have soon what is not settled here."""
        ...

    def info(self) -> ProcessQueueInfo | PopQueueInfo:
        """Its state, for tools (F10)."""
        ...


@dataclass(slots=True, frozen=True)
class Fetching:
    """What all sources of one consumer have in common."""

    instance: ClientInstance
    #: The group's name on the wire.
    group: str
    config: PushConfig
    #: By topic, on the wire; changes while sources run.
    subscriptions: Mapping[str, Subscription]
    settling: Settling
    #: How many queues of each topic are read here.
    queue_counts: Mapping[str, int]
    #: Not set while the consumer is suspended.
    active: asyncio.Event
    #: None unless the queues are read in order and shared.
    locks: HeldLocks | None = None
    #: Not set in an outage of the application; None where there is no listener.
    flowing: asyncio.Event | None = None
    #: By the name of a limit: when the log last said that it holds this consumer back, by the clock's ``monotonic``.
    held_back: dict[str, float] = field(default_factory=dict)

    def may_log(self, limit: str) -> bool:
        """Whether the log should contain (again) that a limit holds this consumer back."""
        now = self.instance.env.clock.monotonic()
        if now - self.held_back.get(limit, -HELD_BACK_LOG_S) < HELD_BACK_LOG_S:
            return False
        self.held_back[limit] = now
        return True


class Asking:
    """The loop of a source: which broker to ask, and what to do after an error."""

    def __init__(
        self, fetching: Fetching, queue: MessageQueue, verb: str, *, on_unreachable: Callable[[str], None] | None = None
    ) -> None:
        """``verb`` is for the log, ``on_unreachable`` is told the name of a broker that cannot be reached."""
        self._fetching = fetching
        self._queue = queue
        self._verb = verb
        self._on_unreachable = on_unreachable
        #: Which copy of the broker to ask; it suggests a slave when we read far behind (O3).
        self.broker_id = MASTER_ID
        self.is_leaving = False
        self._no_master_s = NO_MASTER_PAUSE_S

    async def run(self, room: Callable[[], Awaitable[None]], fetch: Callable[[], Awaitable[None]]) -> None:
        """Wait for ``room`` and ``fetch``, for ever or until ``is_leaving``."""
        active, flowing = self._fetching.active, self._fetching.flowing
        while not self.is_leaving:
            if not active.is_set():
                await active.wait()
            if flowing is not None and not flowing.is_set():
                await flowing.wait()
                continue
            try:
                await room()
                # It may have been told to leave while it waited for either.
                if self.is_leaving:
                    return
                await fetch()
                self._no_master_s = NO_MASTER_PAUSE_S
            except TernError as error:
                await self._recover(error)
            except Exception:
                # Whatever it is, a queue that is not read any more, without notice, would be worse.
                log.exception("the %s from %s failed unexpectedly; retrying", self._verb, self._queue)
                await asyncio.sleep(ERROR_PAUSE_S)

    def copy(self) -> Copy:
        """The broker to ask: the one suggested, else the master, else a slave (O3). Raises ``NetworkError``."""
        return self._fetching.instance.copy_of(self._queue.broker_name, broker_id=self.broker_id)

    async def _recover(self, error: TernError) -> None:
        instance = self._fetching.instance
        if getattr(error, "code", None) == ResponseCode.FLOW_CONTROL:
            await asyncio.sleep(BUSY_PAUSE_S)
            return
        pause_s = ERROR_PAUSE_S
        if isinstance(error, ServiceNotAvailable):
            pause_s, self._no_master_s = self._no_master_s, min(2 * self._no_master_s, ERROR_PAUSE_S)
        log.warning("cannot %s from %s: %s; retrying in %g s", self._verb, self._queue, error, pause_s)
        self.broker_id = MASTER_ID
        if isinstance(error, SubscriptionMissing | SubscriptionOutdated | FilterMissing | FilterOutdated):
            instance.heartbeat_soon()
        elif isinstance(error, NetworkError | ServiceNotAvailable):
            if self._on_unreachable is not None and isinstance(error, NetworkError):
                self._on_unreachable(self._queue.broker_name)
            # Another broker may have taken its place.
            with contextlib.suppress(TernError):
                await instance.routes.refresh(self._queue.topic)
        await asyncio.sleep(pause_s)


def as_it_is(response: Response) -> Response:
    """For ``call_held``: the source itself reads it, as soon as it has its turn."""
    return response


def restore_topic(message: Claimed, namespace: str) -> None:
    """Give a message the topic that the application knows: without retry topics and namespaces."""
    if message.topic.startswith(RETRY_PREFIX):
        message.topic = message.property_of(Property.RETRY_TOPIC) or message.topic
    message.topic = unwrap(namespace, message.topic)
