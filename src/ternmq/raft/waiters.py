"""Callers that wait for one thing, and all get the same answer."""

from __future__ import annotations

import asyncio
from typing import Generic, TypeVar

T = TypeVar("T")


class Waiters(Generic[T]):
    def __init__(self) -> None:
        self._waiting: list[asyncio.Future[T]] = []

    def __len__(self) -> int:
        return len(self._waiting)

    async def wait(self) -> T:
        waiting: asyncio.Future[T] = asyncio.get_running_loop().create_future()
        self._waiting.append(waiting)
        return await waiting

    def answer(self, value: T) -> None:
        """Answer all that wait now; one that gave up is left out."""
        waiting, self._waiting = self._waiting, []
        for each in waiting:
            if not each.done():
                each.set_result(value)
