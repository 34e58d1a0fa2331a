"""One fetch for all callers that ask at the same time."""

from __future__ import annotations

import asyncio

import pytest

from ternmq.client.connect.single_flight import SingleFlight
from ternmq.errors import NetworkError, NotRunning
from ternmq.tasks import Tasks


class Fetch:
    """A fetch that ends when told."""

    def __init__(self) -> None:
        self.count = 0
        self.gate: asyncio.Future[str] = asyncio.get_running_loop().create_future()

    async def __call__(self) -> str:
        self.count += 1
        return await self.gate


async def test_callers_at_the_same_time_share_one_fetch() -> None:
    """A4."""
    async with Tasks() as tasks, asyncio.TaskGroup() as callers:
        flights: SingleFlight[str, str] = SingleFlight(tasks)
        fetch = Fetch()
        answers = [callers.create_task(flights.run("topic", fetch)) for _ in range(3)]
        other = callers.create_task(flights.run("other", _ready))
        assert "ready" == await other
        fetch.gate.set_result("route")

        assert ["route"] * 3 == [await answer for answer in answers]
        assert fetch.count == 1
        assert "ready" == await flights.run("topic", _ready)


async def test_a_caller_that_asks_again_at_once_gets_a_new_answer() -> None:
    """A4: and not the last one for ever, without a turn for any other task."""
    count = 0

    async def fetch() -> int:
        nonlocal count
        count += 1
        return count

    async with Tasks() as tasks:
        flights: SingleFlight[str, int] = SingleFlight(tasks)
        assert [1, 2, 3] == [await flights.run("topic", fetch) for _ in range(3)]


async def _ready() -> str:
    return "ready"


async def test_every_caller_gets_the_error_and_the_next_one_tries_again() -> None:
    async with Tasks() as tasks, asyncio.TaskGroup() as callers:
        flights: SingleFlight[str, str] = SingleFlight(tasks)
        fetch = Fetch()
        answers = [callers.create_task(_error_of(flights, fetch)) for _ in range(2)]
        await _ready()
        fetch.gate.set_exception(NetworkError("gone"))

        assert ["gone", "gone"] == [str(await answer) for answer in answers]
        assert "ready" == await flights.run("topic", _ready)


async def _error_of(flights: SingleFlight[str, str], fetch: Fetch) -> BaseException:
    with pytest.raises(NetworkError) as caught:
        await flights.run("topic", fetch)
    return caught.value


async def test_a_caller_that_gives_up_does_not_take_the_fetch_away() -> None:
    async with Tasks() as tasks, asyncio.TaskGroup() as callers:
        flights: SingleFlight[str, str] = SingleFlight(tasks)
        fetch = Fetch()
        first = callers.create_task(flights.run("topic", fetch))
        second = callers.create_task(flights.run("topic", fetch))
        await asyncio.sleep(0)
        first.cancel()
        await asyncio.wait([first])
        fetch.gate.set_result("route")

        assert "route" == await second


async def test_when_the_owner_ends_callers_get_an_error_and_no_cancellation() -> None:
    flights: SingleFlight[str, str]
    async with asyncio.TaskGroup() as callers:
        async with Tasks() as tasks:
            flights = SingleFlight(tasks)
            answer = callers.create_task(_closed_error(flights, Fetch()))
            await asyncio.sleep(0)
        assert "was closed during this call" in await answer


async def _closed_error(flights: SingleFlight[str, str], fetch: Fetch) -> str:
    with pytest.raises(NotRunning) as caught:
        await flights.run("topic", fetch)
    return str(caught.value)
