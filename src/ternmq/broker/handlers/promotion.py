"""Master and slaves, for tools and for brokers of the same name: state 15010, the epochs of the log 1007, and the
change of roles, 15011 and 15012 (O1). The rules are in ``broker.promotion``.
"""

from __future__ import annotations

from ternmq.broker.flow import ADMIN
from ternmq.broker.promotion import Promotion
from ternmq.broker.replicating import Replicating
from ternmq.net.gate import ANY_CALLER, Action, Rule
from ternmq.net.peer import Peer, Route
from ternmq.wire.bodies.codec import encode
from ternmq.wire.codes import RequestCode
from ternmq.wire.header import Reply, Request
from ternmq.wire.requests_admin import HandOver, PromoteBroker


class PromotionHandlers:
    """``routes`` is the table to serve."""

    def __init__(self, *, replicating: Replicating, promotion: Promotion) -> None:
        self._replicating = replicating
        self._promotion = promotion

    def routes(self) -> dict[int, Route]:
        return {
            RequestCode.GET_BROKER_STATUS: Route(self.status, ADMIN, ANY_CALLER),
            RequestCode.GET_BROKER_EPOCH_CACHE: Route(self.epochs, ADMIN, ANY_CALLER),
            RequestCode.PROMOTE_BROKER: Route(self.promote, ADMIN, Rule(Action.ADMIN)),
            RequestCode.HAND_OVER: Route(self.hand_over, ADMIN, Rule(Action.ADMIN)),
        }

    def status(self, _peer: Peer, _request: Request[object]) -> Reply:
        """Role, log and slaves of this broker (``tern broker status``)."""
        return Reply(body=encode(self._replicating.status()))

    def epochs(self, _peer: Peer, _request: Request[object]) -> Reply:
        """Which master wrote which part of the log (``mqadmin getBrokerEpoch``)."""
        return Reply(body=encode(self._replicating.epochs()))

    async def promote(self, _peer: Peer, request: Request[PromoteBroker]) -> Reply:
        """Become the master of this name (``tern broker promote``)."""
        header = request.fields
        await self._promotion.promote(force=header.force, role=header.role)
        return Reply(body=encode(self._replicating.status()))

    async def hand_over(self, peer: Peer, request: Request[HandOver]) -> Reply:
        """A slave is to become the master in place of this broker, or has become it by force."""
        header = request.fields
        if header.is_done:
            await self._promotion.deposed(header.broker_address)
        else:
            await self._promotion.hand_over(
                header.broker_id,
                address=header.broker_address,
                ha_address=header.ha_address,
                is_wanted=lambda: not peer.closed.is_set(),
            )
        return Reply(body=encode(self._replicating.status()))
