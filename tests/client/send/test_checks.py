"""How many checks of transactions a producer keeps (J2)."""

from __future__ import annotations

import asyncio

from ternmq.client.send.checks import PENDING_BYTES_MAX, Checks
from ternmq.message import Outcome, ReceivedMessage
from ternmq.tasks import Tasks


async def test_checks_are_bounded_by_the_bytes_of_their_messages() -> None:
    """J2: a half may have megabytes. What is too much is dropped, and the broker asks again; one is always taken."""
    begun: list[int] = []
    blocked = asyncio.Event()

    async def checker(_: ReceivedMessage) -> Outcome:
        return Outcome.UNKNOWN

    async with Tasks() as tasks:
        checks = Checks(checker, tasks, group="shop", namespace="", timeout_ms=60_000)

        def check(number: int, size_bytes: int) -> None:
            async def read() -> ReceivedMessage:
                begun.append(number)
                await blocked.wait()
                raise AssertionError("it is never read")

            checks.check(read, f"T{number}", lambda _: None, size_bytes=size_bytes)

        check(0, PENDING_BYTES_MAX + 1)
        check(1, 1)
        await asyncio.sleep(0)
        assert [0] == begun
        await tasks.close()

    async with Tasks() as tasks:
        checks = Checks(checker, tasks, group="shop", namespace="", timeout_ms=60_000)
        begun.clear()
        for number, size_bytes in enumerate((PENDING_BYTES_MAX // 2, PENDING_BYTES_MAX // 2, 1)):
            check(number, size_bytes)
        await asyncio.sleep(0)
        assert [0, 1] == begun
        await tasks.close()
