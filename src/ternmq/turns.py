"""Long work in slices on one loop: one piece at a time, and its owners take turns (B3, L1, J1).

Work that may take seconds gives the loop back after each slice. With a hundred such pieces side by side, a turn of the
loop would have a hundred slices; so one is under way at a time. In their order of arrival, an owner with a thousand
pieces would keep all others waiting: owners take turns instead, and each may have a limited number waiting.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Final

from ternmq.errors import SystemBusy

#: Of all owners, and of one.
WAITING_MAX: Final = 10_000
OWN_WAITING_MAX: Final = 1_000


class Turns:
    """Belongs to one loop. ``what`` is done here: «searches of messages by their keys»."""

    def __init__(self, what: str) -> None:
        self._what = what
        #: By owner, in the order of their turns.
        self._waiting: dict[str, deque[asyncio.Future[None]]] = {}
        self._count = 0
        self._is_taken = False

    @asynccontextmanager
    async def of(self, owner: str) -> AsyncIterator[None]:
        """Wait for a turn of ``owner``, and have it until the end of the block. Raises ``SystemBusy``."""
        if self._is_taken:
            await self._wait(owner)
        self._is_taken = True
        try:
            yield
        finally:
            self._pass_on()

    async def _wait(self, owner: str) -> None:
        own = self._waiting.get(owner)
        if self._count >= WAITING_MAX or (own is not None and len(own) >= OWN_WAITING_MAX):
            raise SystemBusy(
                f"[OVERLOAD]system busy: too many {self._what} are waiting ({self._count}, {len(own or ())} of them of "
                f"{owner}); retry later, and give each message its own key"
            )
        turn = asyncio.get_running_loop().create_future()
        self._waiting.setdefault(owner, deque()).append(turn)
        self._count += 1
        try:
            await turn
        except asyncio.CancelledError:
            if turn.done() and not turn.cancelled():
                # It got its turn, and cannot use it.
                self._pass_on()
            raise

    def _pass_on(self) -> None:
        """Give the turn to the next owner."""
        while self._waiting:
            owner = next(iter(self._waiting))
            own = self._waiting.pop(owner)
            turn = own.popleft()
            self._count -= 1
            if own:
                self._waiting[owner] = own
            if not turn.done():
                turn.set_result(None)
                return
        self._is_taken = False
