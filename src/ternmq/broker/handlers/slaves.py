"""What a slave copies from its master besides the log: all consumer offsets 43, the delay levels' progress 45 (D4, I1);
and how replication goes, 907 (O1).

Slaves ask every 10 s and write the answers to their own files as they come, so these are the files' texts. Topics 21,
groups 201 and request modes 402, which they copy too, are with the tables that tools ask for.
"""

from __future__ import annotations

from collections.abc import Callable

from ternmq.broker.flow import ADMIN
from ternmq.broker.tables.offsets import Offsets
from ternmq.net.gate import ANY_CALLER
from ternmq.net.peer import Peer, Route
from ternmq.wire.bodies.codec import encode
from ternmq.wire.bodies.stats import DelayOffsets, HaStatus
from ternmq.wire.codes import RequestCode
from ternmq.wire.header import Reply, Request


class SlaveHandlers:
    """All methods belong to the broker's loop. ``delays`` gives the progress of the delay levels,
    ``ha_status`` that of replication."""

    def __init__(
        self, *, offsets: Offsets, delays: Callable[[], DelayOffsets], ha_status: Callable[[], HaStatus]
    ) -> None:
        self._offsets = offsets
        self._delays = delays
        self._ha_status = ha_status

    def routes(self) -> dict[int, Route]:
        return {
            RequestCode.GET_ALL_CONSUMER_OFFSET: Route(self.consumer_offsets, ADMIN, ANY_CALLER),
            RequestCode.GET_ALL_DELAY_OFFSET: Route(self.delay_offsets, ADMIN, ANY_CALLER),
            RequestCode.GET_BROKER_HA_STATUS: Route(self.ha_status, ADMIN, ANY_CALLER),
        }

    def consumer_offsets(self, _peer: Peer, _request: Request[object]) -> Reply:
        return Reply(body=encode(self._offsets.body()))

    def delay_offsets(self, _peer: Peer, _request: Request[object]) -> Reply:
        return Reply(body=encode(self._delays()))

    def ha_status(self, _peer: Peer, _request: Request[object]) -> Reply:
        """How far the slaves of this master are, or how far this slave is (``mqadmin haStatus``)."""
        return Reply(body=encode(self._ha_status()))
