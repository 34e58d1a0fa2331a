"""Calls to name servers, which share nothing and know the same (A6).

A client picks one at random, so that clients spread over them, and stays with it until a call to it fails on the
network; then it moves to the next in the list. Only when none answers does the caller see an error. An answer that is
a refusal is an answer.
"""

from __future__ import annotations

import logging
import random
from collections.abc import Awaitable, Callable, Sequence

from ternmq.errors import NameServersUnreachable, NetworkError
from ternmq.wire.header import Response

log = logging.getLogger(__name__)


class NameServers:
    """The list, and the one in use."""

    def __init__(self, addresses: Sequence[str], *, random: random.Random) -> None:
        self.addresses = tuple(addresses)
        self._at = random.randrange(len(self.addresses))

    @property
    def current(self) -> str:
        """The name server that the next call goes to."""
        return self.addresses[self._at]

    async def ask(self, call: Callable[[str], Awaitable[Response]]) -> Response:
        """The first answer that ``call(address)`` gets, from the current one on; ``NameServersUnreachable`` if none."""
        failures: list[str] = []
        for _ in self.addresses:
            asked = self._at
            try:
                return await call(self.addresses[asked])
            except NetworkError as error:
                failures.append(str(error))
                # Another caller may have moved on meanwhile; do not skip the one it found.
                if asked == self._at:
                    self._at = (asked + 1) % len(self.addresses)
                    if len(self.addresses) > 1:
                        log.warning("name server %s does not answer; switching to %s", error.address, self.current)
        raise NameServersUnreachable(
            f"no name server answers at {', '.join(self.addresses)} ({'; '.join(dict.fromkeys(failures))}); "
            "start one with `tern up` or `tern namesrv`, or check the addresses and the firewall",
            address=";".join(self.addresses),
        )
