"""Calls to name servers, which share nothing and know the same (A6).

A client picks one at random, so that clients spread over them, and stays with it until a call to it fails on the
network; then it moves to the next in the list. Only when none answers does the caller see an error. An answer that is
a refusal is an answer.

The list is given, or comes from an HTTP address server (``net.address_server``), which is also asked when none of its
last list answers: name servers may have moved.
"""

from __future__ import annotations

import logging
import random
from collections.abc import Awaitable, Callable, Sequence

from ternmq.errors import NameServersUnreachable, NetworkError
from ternmq.net.address_server import AddressServer, is_url
from ternmq.wire.header import Response

log = logging.getLogger(__name__)


class NameServers:
    """The list, and the one in use. ``addresses`` may be a single URL of an address server."""

    def __init__(self, addresses: Sequence[str], *, random: random.Random) -> None:
        self._random = random
        self.addresses: tuple[str, ...] = ()
        self._at = 0
        #: Where the list comes from, if it is not given.
        self.address_server: AddressServer | None = None
        if is_url(addresses[0]):
            self.address_server = AddressServer(addresses[0], self._use)
        else:
            self._use(tuple(addresses))

    def _use(self, addresses: tuple[str, ...]) -> None:
        # Stay with the one in use, if it is still there.
        current = self.addresses[self._at] if self.addresses else ""
        self.addresses = addresses
        self._at = addresses.index(current) if current in addresses else self._random.randrange(len(addresses))

    @property
    def current(self) -> str:
        """The name server that the next call goes to."""
        return self.addresses[self._at]

    async def known(self) -> tuple[str, ...]:
        """All of them; fetched first, if need be. Raises ``NameServersUnreachable`` if that fails."""
        return self.addresses or (await self.address_server.known() if self.address_server is not None else ())

    async def ask(self, call: Callable[[str], Awaitable[Response]]) -> Response:
        """The first answer that ``call(address)`` gets, from the current one on; ``NameServersUnreachable`` if none."""
        await self.known()
        try:
            return await self._ask_each(call)
        except NameServersUnreachable:
            if self.address_server is None or not await self.address_server.refresh():
                raise
        return await self._ask_each(call)

    async def _ask_each(self, call: Callable[[str], Awaitable[Response]]) -> Response:
        failures: list[str] = []
        for _ in self.addresses:
            asked = self.current
            try:
                return await call(asked)
            except NetworkError as error:
                failures.append(str(error))
                # Another caller may have moved on meanwhile; do not skip the one it found.
                if asked == self.current:
                    self._at = (self._at + 1) % len(self.addresses)
                    if len(self.addresses) > 1:
                        log.warning("name server %s does not answer; switching to %s", error.address, self.current)
        raise NameServersUnreachable(
            f"no name server answers at {', '.join(self.addresses)} ({'; '.join(dict.fromkeys(failures))}); "
            "start one with `tern up` or `tern namesrv`, or check the addresses and the firewall",
            address=";".join(self.addresses),
        )
