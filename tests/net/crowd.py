"""A crowd of connections of one hostile program, for the ports of members and slaves (N1)."""

from __future__ import annotations

import asyncio
import contextlib
import socket
from collections import deque
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Final

#: How many connections it makes, and from where.
SIZE: Final = 10_000
FROM: Final = "127.0.0.2"


class Crowd:
    """``waiting`` tells how many the server keeps; ``most`` is the largest number of them."""

    def __init__(self, address: str, says: bytes, *, kept_max: int, waiting: Callable[[], int]) -> None:
        host, port = address.split(":")
        self._address = host, int(port)
        self._says = says
        self._waiting = waiting
        #: Those that the program keeps; the others are closed at both ends.
        self._kept: deque[socket.socket] = deque(maxlen=kept_max)
        self.most = 0
        self.is_done = False

    async def come(self) -> None:
        loop = asyncio.get_running_loop()
        for _ in range(SIZE):
            if len(self._kept) == self._kept.maxlen:
                self._kept.popleft().close()
            one = socket.socket()
            one.setblocking(False)
            one.bind((FROM, 0))
            self._kept.append(one)
            await loop.sock_connect(one, self._address)
            # It may be closed for the next one already.
            with contextlib.suppress(ConnectionError):
                await loop.sock_sendall(one, self._says)
            self.most = max(self.most, self._waiting())
        self.is_done = True

    def go(self) -> None:
        for one in self._kept:
            one.close()


@asynccontextmanager
async def crowding(address: str, says: bytes, *, kept_max: int, waiting: Callable[[], int]) -> AsyncIterator[Crowd]:
    """The crowd comes while the block runs; its end waits until all have come."""
    crowd = Crowd(address, says, kept_max=kept_max, waiting=waiting)
    coming = asyncio.create_task(crowd.come())
    try:
        yield crowd
        await coming
    finally:
        coming.cancel()
        crowd.go()
