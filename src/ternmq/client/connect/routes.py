"""Where the queues of a topic are: from the name server's answer to queues and addresses (A4, E3).

``TopicRoute`` is the pure part: RocketMQ's route data turned into the queues a producer may write to (brokers with a
master and write permission) and those a consumer may read from, in one order everywhere: by broker name, then queue id.
A sharding key therefore finds the same queue in every client of every language.

A route is what others claim, so it is bounded before it becomes queues: a number of queues takes ten bytes of an
answer, and each queue a hundred in a client.

``Routes`` keeps them: asked for once however many callers wait, asked again every 30 s and on demand. A topic that no
name server knows yet is no error for a producer: it takes the route of TBW102, whose brokers create topics on the
first send (D1), with at most ``queues_max`` queues each; the next refresh replaces it by the real one.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Collection, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Final, NamedTuple

from ternmq.client.connect.single_flight import SingleFlight
from ternmq.errors import NetworkError, RemoteProtocolError, RouteMissing, TernError, refused
from ternmq.message import MessageQueue
from ternmq.names import AUTO_CREATE_TOPIC
from ternmq.net.peer import TaskOwner
from ternmq.wire.bodies import routes as bodies
from ternmq.wire.bodies.codec import decode
from ternmq.wire.codes import ResponseCode
from ternmq.wire.header import Response

log = logging.getLogger(__name__)

#: Queues of one topic, for reading and for writing; RocketMQ has no limit. What goes beyond is left out.
QUEUES_MAX: Final = 65_536
#: Brokers of one topic, masters and slaves. A route with more is refused: each would get connections and heartbeats.
BROKERS_MAX: Final = 4_096

MASTER_ID: Final = 0
PERM_WRITE: Final = 2
PERM_READ: Final = 4

#: Of a Java int.
_DIGITS_MAX: Final = 10

#: Asks a name server for the route of a topic, and gives its response whatever the code.
AskRoute = Callable[[str], Awaitable[Response]]


class Copy(NamedTuple):
    """A master or one of its slaves."""

    broker_id: int
    address: str

    @property
    def is_master(self) -> bool:
        return self.broker_id == MASTER_ID


@dataclass(slots=True, frozen=True)
class TopicRoute:
    """The queues of a topic and the brokers they live on."""

    topic: str
    #: Queues that can be written to, in the order in which producers take turns.
    to_write: tuple[MessageQueue, ...]
    #: Queues that can be read from.
    to_read: tuple[MessageQueue, ...]
    #: Broker name → broker id → address; id 0 is the master.
    brokers: Mapping[str, Mapping[int, str]]
    #: Broker name → its number of write queues, as the name server says (before any cap).
    write_queues: Mapping[str, int]
    #: Taken from TBW102, because the topic does not exist yet.
    is_default: bool = False
    #: The clusters that its brokers belong to, each once.
    clusters: tuple[str, ...] = ()
    #: Names of brokers that claim more queues than fit ``QUEUES_MAX``, each with how many it claims.
    cut: Mapping[str, int] = field(default_factory=dict)

    def address(self, broker_name: str, broker_id: int = MASTER_ID) -> str | None:
        """The address of one broker, if the route has it."""
        return self.brokers.get(broker_name, {}).get(broker_id)

    @property
    def lacks_master(self) -> bool:
        """Whether a broker has slaves only: one of them may be about to become the master."""
        return any(MASTER_ID not in by_id for by_id in self.brokers.values())


def build_route(topic: str, data: bodies.TopicRouteBody, *, queues_max: int | None = None) -> TopicRoute:
    """The route of ``topic`` from what a name server said; ``queues_max`` makes it a default route for a new topic.

    Raises ``RemoteProtocolError`` for one that no cluster can have.
    """
    count = sum(max(1, len(broker.broker_addrs)) for broker in data.broker_datas)
    if count > BROKERS_MAX:
        raise RemoteProtocolError(
            f"the route of topic {topic!r} names {count} brokers, more than {BROKERS_MAX}; check the name server"
        )
    brokers = {broker.broker_name: dict(broker.broker_addrs) for broker in data.broker_datas}
    writable: dict[str, int] = {}
    readable: dict[str, int] = {}
    for queues in sorted(data.queue_datas, key=lambda queues: queues.broker_name):
        name = queues.broker_name
        if name not in brokers:
            continue
        if queues.perm & PERM_READ:
            readable[name] = max(0, queues.read_queue_nums)
        if queues.perm & PERM_WRITE and MASTER_ID in brokers[name]:
            count = max(0, queues.write_queue_nums)
            writable[name] = count if queues_max is None else min(count, queues_max)
    # An ordered topic's list, set by an administrator, stands above what brokers report: it stays while one is down,
    # so that no key moves to another queue.
    ordered = _ordered(data.order_topic_conf) if queues_max is None else {}
    cut: dict[str, int] = {}
    return TopicRoute(
        topic=topic,
        to_write=_queues(topic, ordered or writable, cut),
        to_read=_queues(topic, readable, cut),
        brokers=brokers,
        write_queues=writable,
        is_default=queues_max is not None,
        clusters=tuple(dict.fromkeys(broker.cluster for broker in data.broker_datas)),
        cut=cut,
    )


def _queues(topic: str, counts: Mapping[str, int], cut: dict[str, int]) -> tuple[MessageQueue, ...]:
    """The queues of all brokers, ``QUEUES_MAX`` at most. Brokers with few have theirs first: an absurd number takes
    none away from the others. ``cut`` learns whose queues are not all there."""
    if sum(counts.values()) > QUEUES_MAX:
        left = QUEUES_MAX
        kept: dict[str, int] = {}
        for name, count in sorted(counts.items(), key=lambda item: item[1]):
            kept[name] = min(count, left)
            left -= kept[name]
            if kept[name] < count:
                cut[name] = count
        counts = {name: kept[name] for name in counts}
    return tuple([MessageQueue(topic, name, queue_id) for name, count in counts.items() for queue_id in range(count)])


def _ordered(text: str | None) -> dict[str, int]:
    """``broker:queues;broker:queues``; parts that are not of this form are skipped, as RocketMQ's clients do."""
    parts = (part.strip().rpartition(":") for part in (text or "").split(";"))
    return {name: int(count) for name, _, count in parts if name and count.isdecimal() and len(count) <= _DIGITS_MAX}


class Routes:
    """The routes of all topics in use. All methods belong to the loop's thread, but ``known``.

    ``on_change`` is called with the new route after one has really changed (and when it is first known).
    """

    def __init__(self, ask: AskRoute, tasks: TaskOwner) -> None:
        self._ask = ask
        self._known: dict[str, TopicRoute] = {}
        self._asking: SingleFlight[tuple[str, int | None], TopicRoute] = SingleFlight(tasks)
        #: Questions that are asked in a moment.
        self._pausing: SingleFlight[tuple[str, int | None], TopicRoute] = SingleFlight(tasks)
        self.on_change: list[Callable[[TopicRoute], None]] = []

    def known(self, topic: str) -> TopicRoute | None:
        """The route as last heard; no question is asked."""
        return self._known.get(topic)

    async def of(self, topic: str, *, queues_max: int | None = None) -> TopicRoute:
        """The route of a topic, asked for if it is not known yet.

        Raises ``RouteMissing`` when no name server knows the topic. With ``queues_max`` (producers) such a topic has
        the route of TBW102 instead, if some broker creates topics.
        """
        route = self._known.get(topic)
        # A consumer must not take the default route: its queues do not exist.
        if route is not None and (queues_max is not None or not route.is_default):
            return route
        return await self.refresh(topic, queues_max=queues_max)

    async def refresh(self, topic: str, *, queues_max: int | None = None) -> TopicRoute:
        """The route of a topic as the name server knows it now; callers at the same time share one question."""
        return await self._asking.run((topic, queues_max), lambda: self._fetch(topic, queues_max))

    async def refresh_in(self, pause_s: float, topic: str, *, queues_max: int | None = None) -> TopicRoute:
        """As ``refresh``, after a pause. All that wait for a change share the pauses, too: hundreds of sends that have
        lost their broker are one question a moment."""

        async def ask() -> TopicRoute:
            await asyncio.sleep(pause_s)
            return await self.refresh(topic, queues_max=queues_max)

        return await self._pausing.run((topic, queues_max), ask)

    async def refresh_all(self) -> None:
        """Ask again for all topics in use. One that is gone keeps its last route; sends to it tell the truth."""
        for topic, route in list(self._known.items()):
            try:
                await self.refresh(topic)
            except RouteMissing:
                if route.is_default:
                    # The next send asks again: the brokers of TBW102 may be others now.
                    self._known.pop(topic, None)
                else:
                    log.warning("topic %s no longer exists on the name servers", topic)
            except NetworkError as error:
                log.warning("cannot refresh routes: %s", error)
                return
            except TernError as error:
                log.warning("cannot refresh the route of topic %s: %s", topic, error)

    async def _fetch(self, topic: str, queues_max: int | None) -> TopicRoute:
        response = await self._ask(topic)
        is_default = response.code == ResponseCode.TOPIC_NOT_EXIST and queues_max is not None
        if is_default:
            default = await self._ask(AUTO_CREATE_TOPIC)
            # A broker that came back between the questions has the topic as well, with queues of its own: keys would
            # go to other queues than before.
            response = await self._ask(topic)
            is_default = response.code == ResponseCode.TOPIC_NOT_EXIST
            if is_default:
                response = default
        if response.code == ResponseCode.TOPIC_NOT_EXIST:
            hint = (
                " and no broker creates topics automatically (autoCreateTopicEnable)" if queues_max is not None else ""
            )
            raise RouteMissing(
                f"no name server knows the topic {topic!r}{hint}; "
                f"create it with `tern topic create {topic}`, and check that its brokers are registered",
                topic=topic,
            )
        if response.code != ResponseCode.SUCCESS:
            raise refused(response.code, f"the name server refused the route of topic {topic!r}: {response.remark}")
        data = decode(response.body, bodies.TopicRouteBody)
        return self._keep(build_route(topic, data, queues_max=queues_max if is_default else None))

    def _keep(self, route: TopicRoute) -> TopicRoute:
        if route != self._known.get(route.topic):
            # To the end: ``address`` looks there first, and a broker may have moved.
            self._known.pop(route.topic, None)
            self._known[route.topic] = route
            for name, count in route.cut.items():
                log.warning(
                    "broker %s claims %d queues of topic %s; a client uses at most %d of all brokers together and "
                    "ignores the rest",
                    name,
                    count,
                    route.topic,
                    QUEUES_MAX,
                )
            for tell in self.on_change:
                tell(route)
        return route

    def addresses(self, *, masters_only: bool) -> Iterable[str]:
        """The addresses of all brokers of all routes, each once."""
        found = {
            address: None
            for route in self._known.values()
            for by_id in route.brokers.values()
            for broker_id, address in by_id.items()
            if not masters_only or broker_id == MASTER_ID
        }
        return found.keys()

    def copy(self, broker_name: str, broker_id: int = MASTER_ID, *, silent: Collection[str] = ()) -> Copy | None:
        """Where to read from a broker: from the copy with this id, else from the master, else from the slave with the
        smallest id, so that all members commit on the same one; from one that is not ``silent``, if there is one. The
        newest route that names the broker counts."""
        for route in reversed(self._known.values()):
            by_id = route.brokers.get(broker_name)
            if by_id:
                wanted = [one for one in (broker_id, MASTER_ID, *sorted(by_id)) if one in by_id]
                found = next((one for one in wanted if by_id[one] not in silent), wanted[0])
                return Copy(found, by_id[found])
        return None

    def address(self, broker_name: str, broker_id: int = MASTER_ID) -> str | None:
        """The address of a broker that some route names; of the newest route that does."""
        for route in reversed(self._known.values()):
            address = route.address(broker_name, broker_id)
            if address is not None:
                return address
        return None
