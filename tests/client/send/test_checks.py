"""How many checks of transactions a producer keeps (J2)."""

from __future__ import annotations

import asyncio

import pytest

from ternmq.client.send.checks import PENDING_BYTES_MAX, Checks
from ternmq.message import Outcome, ReceivedMessage
from ternmq.tasks import Tasks
from tests.client.test_transaction_table import asked
from tests.manual_clock import ManualClock


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


@pytest.mark.parametrize("error", [ValueError, SystemExit, asyncio.CancelledError])
async def test_a_checker_that_fails_in_its_thread_leaves_the_transaction_open(error: type[BaseException]) -> None:
    """J2: also with what would end the thread, or the loop that waits for it."""

    def checker(_: ReceivedMessage) -> Outcome:
        raise error

    answered: asyncio.Future[Outcome] = asyncio.get_running_loop().create_future()

    async def read() -> ReceivedMessage:
        return asked(ManualClock(), "T1")

    async with Tasks() as tasks:
        checks = Checks(checker, tasks, group="shop", namespace="", timeout_ms=60_000)
        checks.check(read, "T1", answered.set_result, size_bytes=1)
        assert Outcome.UNKNOWN is await answered
        checks.close()
