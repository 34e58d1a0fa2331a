"""When a member of a Raft group that does not lead refuses messages: TernMQ's producers at once, others later (P4).

TernMQ's producers ask for the new leader when they are refused. RocketMQ's do not: each of their attempts (three for a
synchronous send) goes to the address that they know, one right after the other, until they ask for routes at their next
``pollNameServerInterval``. Refused at once, all attempts are over within 1 ms. So a refusal waits for ``HELD_S``: a
producer that asks for routes every second has done so when it tries again, also if its first attempt was ended by the
end of the leadership itself; and there is time for a third attempt (``sendMsgTimeout``, 3 s). Nothing is stored here,
so no message can be there twice, or be acknowledged and lost.

While a refusal waits, the message is not kept. No more than ``HELD_MAX`` wait; further messages are refused at once.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable
from dataclasses import replace
from typing import Any, Final

from ternmq.errors import NotMaster
from ternmq.net.peer import Peer, Route, RouteTable
from ternmq.wire.codes import RequestCode
from ternmq.wire.header import Reply, Request

#: How long a refusal waits, and how many may.
HELD_S: Final = 1.2
HELD_MAX: Final = 2_000
_SENDS: Final = (RequestCode.SEND_MESSAGE, RequestCode.SEND_MESSAGE_V2, RequestCode.SEND_BATCH_MESSAGE)
#: What TernMQ's clients say that they are.
_OURS: Final = "PYTHON"


class RaftSends:
    """All methods belong to the broker's loop."""

    def __init__(self) -> None:
        self._held = 0

    def routes(self, others: RouteTable) -> dict[int, Route]:
        """The sends among the routes of every broker, refused as a group does it."""
        return {code: self._patient(others[code]) for code in _SENDS}

    def _patient(self, route: Route) -> Route:
        handler = route.handler

        def handle(peer: Peer, request: Request[Any]) -> Reply | bytes | Awaitable[Reply | None] | None:
            try:
                return handler(peer, request)
            except NotMaster as refusal:
                if request.oneway or request.language_name == _OURS or self._held >= HELD_MAX:
                    raise
                request.release()
                # The frames that it was raised in have the message, too.
                held = refusal.with_traceback(None)
                self._held += 1
                asyncio.get_running_loop().call_later(HELD_S, self._refuse, peer, request, held)
                return None

        return replace(route, handler=handle)

    def _refuse(self, peer: Peer, request: Request[Any], refusal: NotMaster) -> None:
        self._held -= 1
        peer.fail(request, refusal)
