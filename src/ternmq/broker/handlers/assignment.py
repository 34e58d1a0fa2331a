"""How groups share the queues of a topic when they leave that out to the broker: 400, 401, 402 (F9, G1)."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Final

from ternmq import names
from ternmq.allocation import Allocation, Averagely, AveragelyByCircle, ConsistentHash
from ternmq.broker.config import READ
from ternmq.broker.flow import ADMIN, CLIENT
from ternmq.broker.services.catalog import Catalog
from ternmq.broker.tables.clients import Clients
from ternmq.broker.tables.topics import Topics
from ternmq.errors import InvalidParameter, NoPermission
from ternmq.message import MessageQueue
from ternmq.net.gate import ANY_CALLER, Action, Resource, ResourceKind, Rule
from ternmq.net.peer import Peer, Route
from ternmq.pop.assign import RequestModeTable, popped_queues
from ternmq.wire.bodies.clients import (
    AssignmentQuery,
    Assignments,
    GroupRequestMode,
    MessageModel,
    QueueAssignment,
    RequestMode,
)
from ternmq.wire.bodies.codec import Queue, decode, encode
from ternmq.wire.bodies.routes import TopicRouteBody
from ternmq.wire.codes import RequestCode
from ternmq.wire.header import Reply, Request

#: Strategies that need nothing but the two lists; the others know about machine rooms or fixed lists, which only the
#: client has.
STRATEGIES: Final[dict[str, Allocation]] = {
    strategy.name: strategy for strategy in (Averagely(), AveragelyByCircle(), ConsistentHash())
}

#: Finds a topic's route over all brokers; None where there is no name server to ask.
FindRoute = Callable[[str], Awaitable[TopicRouteBody | None]]


class AssignmentHandlers:
    """All methods belong to the broker's loop."""

    def __init__(
        self,
        *,
        modes: RequestModeTable,
        catalog: Catalog,
        clients: Clients,
        topics: Topics,
        broker_name: str,
        find_route: FindRoute,
        tell_members: Callable[[str], None],
    ) -> None:
        self._modes = modes
        self._clients = clients
        self._topics = topics
        self._catalog = catalog
        self._broker_name = broker_name
        self._find_route = find_route
        self._tell_members = tell_members

    def routes(self) -> dict[int, Route]:
        return {
            RequestCode.QUERY_ASSIGNMENT: Route(self.assignment, CLIENT, Rule(Action.SUB, in_body=_assigned)),
            RequestCode.SET_MESSAGE_REQUEST_MODE: Route(self.set_mode, ADMIN, Rule(Action.ADMIN, in_body=_switched)),
            RequestCode.GET_ALL_MESSAGE_REQUEST_MODE: Route(self.all_modes, ADMIN, ANY_CALLER),
        }

    async def assignment(self, _peer: Peer, request: Request[object]) -> Reply:
        """The queues of a topic that a client of RocketMQ 5 reads when it leaves the sharing out to the broker.

        An answer without a list means «keep what you have»: the client or the topic is not known here yet.
        """
        asked = decode(request.body, AssignmentQuery)
        strategy = STRATEGIES.get(asked.strategy_name)
        if strategy is None:
            raise InvalidParameter(
                f"the broker has no allocation strategy {asked.strategy_name!r}; use one of "
                f"{', '.join(STRATEGIES)}, or let the client rebalance (clientRebalance=true)"
            )
        queues = await self._queues(asked.topic)
        mode = self._modes.find(asked.consumer_group, asked.topic)
        mine: list[MessageQueue] | None
        if asked.message_model is MessageModel.BROADCASTING:
            mine = queues or None
        else:
            members = self._clients.consumer_ids(asked.consumer_group)
            if not queues or not members:
                mine = None
            elif mode.mode is RequestMode.POP:
                mine = popped_queues(strategy, asked.client_id, queues, members, share=mode.pop_share_queue_num)
            else:
                mine = strategy.allocate(asked.client_id, queues, members)
        if mine is None:
            return Reply(body=encode(Assignments()))
        assignments = [QueueAssignment(message_queue=Queue.of(queue), mode=mode.mode) for queue in mine]
        return Reply(body=encode(Assignments(message_queue_assignments=assignments)))

    async def set_mode(self, _peer: Peer, request: Request[object]) -> Reply:
        """Have a group pop the messages of a topic from now on, or pull them; answered when that is on disk."""
        mode = decode(request.body, GroupRequestMode)
        if mode.topic.startswith(names.RETRY_PREFIX):
            raise NoPermission(
                f"retry topic is not allowed to set mode: {mode.topic}; set the mode of the topic itself"
            )
        self._catalog.set_mode(mode)
        # Members ask again now, not with their next rebalance.
        self._tell_members(mode.consumer_group)
        await self._catalog.saved()
        return Reply()

    def all_modes(self, _peer: Peer, _request: Request[object]) -> Reply:
        """The whole table, for slaves."""
        return Reply(body=encode(self._modes.body()))

    async def _queues(self, topic: str) -> list[MessageQueue]:
        """The queues of a topic on all brokers; on this one alone when no name server answers."""
        route = await self._find_route(topic)
        if route is not None:
            return [
                MessageQueue(topic, data.broker_name, queue_id)
                for data in route.queue_datas
                if data.perm & READ
                for queue_id in range(data.read_queue_nums)
            ]
        config = self._topics.get(topic)
        if config is None or not config.perm & READ:
            return []
        return [MessageQueue(topic, self._broker_name, queue_id) for queue_id in range(config.read_queue_nums)]


def _assigned(body: memoryview) -> list[Resource]:
    asked = decode(body, AssignmentQuery)
    return [Resource(ResourceKind.GROUP, asked.consumer_group), Resource(ResourceKind.TOPIC, asked.topic)]


def _switched(body: memoryview) -> list[Resource]:
    mode = decode(body, GroupRequestMode)
    return [Resource(ResourceKind.GROUP, mode.consumer_group), Resource(ResourceKind.TOPIC, mode.topic)]
