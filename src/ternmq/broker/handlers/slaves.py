"""What a slave copies from its master besides the log: all consumer offsets 43, the delay levels' progress 45, SQL
filters 15020 (D4, I1, O4); how replication goes, 907 (O1); and the offsets that slaves return, 15030 (O3).

Slaves ask every 10 s and write the answers to their own files as they come, so these are the files' texts. Topics 21,
groups 201 and request modes 402, which they copy too, are with the tables that tools ask for.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable

from ternmq.broker.flow import ADMIN
from ternmq.broker.roles import Roles
from ternmq.broker.services.positions import Positions
from ternmq.broker.tables.filters import Filters
from ternmq.broker.tables.offsets import Offsets
from ternmq.env import Clock
from ternmq.errors import NotMaster
from ternmq.net.gate import ANY_CALLER, Action, Rule
from ternmq.net.peer import Peer, Route
from ternmq.wire.bodies.codec import decode, encode
from ternmq.wire.bodies.offsets import OffsetsTaken, OwnOffsets
from ternmq.wire.bodies.stats import DelayOffsets, HaStatus
from ternmq.wire.codes import RequestCode
from ternmq.wire.header import Reply, Request


class SlaveHandlers:
    """All methods belong to the broker's loop. ``delays`` gives the progress of the delay levels,
    ``timer`` the check point of the timer as RocketMQ has it."""

    def __init__(
        self,
        *,
        offsets: Offsets,
        positions: Positions,
        roles: Roles,
        filters: Filters,
        delays: Callable[[], DelayOffsets],
        ha_status: Callable[[], HaStatus],
        clock: Clock,
    ) -> None:
        self._filters = filters
        self._offsets = offsets
        self._positions = positions
        self._roles = roles
        self._clock = clock
        self._delays = delays
        self._ha_status = ha_status

    def routes(self) -> dict[int, Route]:
        return {
            RequestCode.GET_ALL_CONSUMER_OFFSET: Route(self.consumer_offsets, ADMIN, ANY_CALLER),
            RequestCode.GET_ALL_DELAY_OFFSET: Route(self.delay_offsets, ADMIN, ANY_CALLER),
            RequestCode.GET_ALL_CONSUMER_FILTER: Route(self.consumer_filters, ADMIN, ANY_CALLER),
            RequestCode.GET_BROKER_HA_STATUS: Route(self.ha_status, ADMIN, ANY_CALLER),
            RequestCode.RETURN_OFFSETS: Route(self.take_over, ADMIN, Rule(Action.ADMIN)),
        }

    def consumer_offsets(self, _peer: Peer, _request: Request[object]) -> Reply:
        return Reply(body=encode(self._offsets.body()))

    def delay_offsets(self, _peer: Peer, _request: Request[object]) -> Reply:
        return Reply(body=encode(self._delays()))

    def consumer_filters(self, _peer: Peer, _request: Request[object]) -> Reply:
        """TernMQ's own: RocketMQ's slaves know no filters before consumers have told them."""
        return Reply(body=encode(self._filters.body()))

    def ha_status(self, _peer: Peer, _request: Request[object]) -> Reply:
        """How far the slaves of this master are, or how far this slave is (``mqadmin haStatus``)."""
        return Reply(body=encode(self._ha_status()))

    def take_over(self, _peer: Peer, request: Request[object]) -> Reply | Awaitable[Reply]:
        """Offsets that members have committed on a slave; they are on disk when this is answered, as the slave forgets
        that they are its own. Raises ``NotMaster``."""
        if not self._roles.is_master:
            raise NotMaster("this broker is not the master: it does not take offsets over")
        taken = self._positions.take_over(decode(request.body, OwnOffsets).offsets)
        return self._when_saved(taken) if taken else self._taken(0)

    async def _when_saved(self, taken: int) -> Reply:
        self._offsets.save()
        await self._offsets.saved()
        return self._taken(taken)

    def _taken(self, taken: int) -> Reply:
        return Reply(body=encode(OffsetsTaken(now_ms=self._clock.now_ms(), taken=taken)))
