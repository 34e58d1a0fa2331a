"""Outgoing connections: ``ip:port`` in, a ``Peer`` out."""

from __future__ import annotations

import ssl
from collections.abc import Callable

from ternmq.net.endpoint import dial
from ternmq.net.lanes import Lanes
from ternmq.net.peer import Peer, RouteTable, TaskOwner
from ternmq.wire.auth import Credentials


async def connect(
    address: str,
    *,
    routes: RouteTable,
    lanes: Lanes,
    tasks: TaskOwner,
    on_close: Callable[[Peer], None] | None = None,
    credentials: Credentials | None = None,
    tls: ssl.SSLContext | None = None,
    timeout_ms: int = 3000,
) -> Peer:
    """Connect to ``host:port``; raises ``NetworkError`` that names the address and the reason.

    Calls are signed with ``credentials``.
    """

    def connected() -> Peer:
        return Peer(routes, lanes, tasks, on_close=on_close, credentials=credentials)

    return await dial(address, connected, tls, timeout_ms=timeout_ms)
