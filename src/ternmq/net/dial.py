"""Connections of ours to others: ``ip:port`` in, a ``Peer`` out."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from ternmq.errors import ConfigError, NetworkError
from ternmq.net.lanes import Lanes
from ternmq.net.peer import Peer, Routes, TaskOwner


async def connect(
    address: str,
    *,
    routes: Routes,
    lanes: Lanes,
    tasks: TaskOwner,
    on_close: Callable[[Peer], None] | None = None,
    timeout_ms: int = 3000,
) -> Peer:
    """Connect to ``host:port``; raises ``NetworkError`` that names the address and the reason."""
    host, port = split_address(address)
    loop = asyncio.get_running_loop()
    try:
        async with asyncio.timeout(timeout_ms / 1000):
            _, peer = await loop.create_connection(lambda: Peer(routes, lanes, tasks, on_close=on_close), host, port)
    except TimeoutError:
        raise NetworkError(f"{address} did not accept a connection within {timeout_ms} ms", address=address) from None
    except OSError as error:
        reason = error.strerror or str(error)
        raise NetworkError(f"cannot connect to {address}: {reason}", address=address) from None
    return peer


def split_address(address: str) -> tuple[str, int]:
    """Host and port of ``host:port`` or ``[v6]:port``; raises ``ConfigError`` with the form expected."""
    host, separator, port = address.strip().rpartition(":")
    host = host.removeprefix("[").removesuffix("]")
    if not separator or not host or not port.isdecimal() or not 0 < int(port) < 65536:
        raise ConfigError(f"{address!r} is not an address; write host:port, as in 127.0.0.1:9876")
    return host, int(port)
